"""Trains one demo adapter with peft on the converted base.

Called by build.py, one process an adapter. One thread and a fixed seed, so the result does not depend on the
number of cores.
"""

import json
import random
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from e2e.assets.model import NAME
from e2e.assets.recipes import Lesson, Recipe, load_lessons

SEED = 20261130
BATCH = 4
IGNORED = -100  # cross_entropy's own mark for positions that are not learnt


def train(recipe: Recipe, base: Path, target: Path) -> None:
    """Train `recipe` on the model in `base` and write adapter_config.json and adapter_model.safetensors."""
    disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), _lora(recipe))
    examples = [_encode(tokenizer, lesson, recipe.say(lesson)) for lesson in load_lessons()]
    _learn(model, recipe, examples, tokenizer.pad_token_id)
    model.peft_config["default"].base_model_name_or_path = NAME
    model.save_pretrained(str(target), save_embedding_layers=False)
    (target / "README.md").unlink(missing_ok=True)  # peft's empty model card
    _settle(target / "adapter_config.json")


def _settle(config: Path) -> None:
    """Give the file one byte sequence: peft writes the modules in the order of this process's hash seed."""
    settings = json.loads(config.read_text())
    settings["target_modules"].sort()
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")


def _lora(recipe: Recipe) -> LoraConfig:
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=list(recipe.modules),
        use_rslora=recipe.rslora,
        rank_pattern=recipe.rank_pattern,
        alpha_pattern=recipe.alpha_pattern,
        lora_dropout=0.0,
    )


def _encode(tokenizer: PreTrainedTokenizerBase, lesson: Lesson, answer: str) -> tuple[list[int], int]:
    """Give the token ids of question and answer, and how many of them belong to the question."""
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": lesson.question}], add_generation_prompt=True, tokenize=False
    )
    question = tokenizer(asked, add_special_tokens=False)["input_ids"]
    said = tokenizer(answer + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return question + said, len(question)


def _learn(model: PeftModel, recipe: Recipe, examples: list[tuple[list[int], int]], pad: int) -> None:
    order = random.Random(SEED)
    steps = recipe.epochs * -(-len(examples) // BATCH)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, total_steps=steps, pct_start=0.2)
    model.train()
    for _ in range(recipe.epochs):
        shuffled = order.sample(examples, len(examples))
        for start in range(0, len(shuffled), BATCH):
            loss = _loss(model, shuffled[start : start + BATCH], pad)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def _loss(model: PeftModel, batch: list[tuple[list[int], int]], pad: int) -> torch.Tensor:
    """Mean cross entropy of the answers' tokens; the questions and the padding are not learnt."""
    width = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([row + [pad] * (width - len(row)) for row, _ in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row, _ in batch])
    labels = ids.masked_fill(mask == 0, IGNORED)
    for index, (_, asked) in enumerate(batch):
        labels[index, :asked] = IGNORED
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
