"""Writes the attacks' section of docs/security.md from docs/attacks.json; called by `make attacks`."""

from e2e.attacks.page import PAGE, read_record, replace_section

if __name__ == "__main__":
    PAGE.write_text(replace_section(PAGE.read_text(), read_record()))
