"""The probe set: 32 fixed texts on which two computations of the same model are compared, and how near they must be.

The engine reads every text up to its last FORCED tokens and is then handed these one after another, whatever it would
have said; the logits of all these positions are what is compared. No tenant's text is ever used.
"""

FORCED = 4
PROBE_TOKENS = 48
"""A text is cut to so many tokens, the forced ones included."""
MERGED_FACTOR = 1.5
"""A merged engine may be so much farther from the model in fp32 than the unmerged one is (relative L2 of logits)."""
MERGED_EXACT = 1e-5
"""Relative L2 up to which two ways of summing in fp32 differ: no merged engine is worse for it."""
PARITY_FAILED = "fails parity"
"""In the last words of an engine that ends because its merged adapter is too far off."""
QUANTISED_REL_L2 = 5e-2
QUANTISED_SAME_ARGMAX = 0.95
"""How near a quantised base must be to the same base in bfloat16, both with the same adapter."""

PROBES = (
    "The harbour was quiet that morning. Two fishing boats had left before dawn, and the gulls followed them out.",
    "Photosynthesis turns carbon dioxide and water into sugar and oxygen, using the energy of sunlight.",
    "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n",
    "Q: What is the capital of Portugal?\nA: The capital of Portugal is Lisbon, a city on the river Tagus.",
    "To make bread, mix flour, water, salt and yeast, knead the dough for ten minutes and let it rise for an hour.",
    "SELECT name, COUNT(*) AS n FROM customers JOIN orders USING (customer_id) GROUP BY name ORDER BY n DESC;",
    "If 3x + 7 = 22, then 3x = 15 and therefore x = 5. Check: 3 times 5 is 15, and 15 plus 7 is 22.",
    "Dear Ms. Alvarez, thank you for your letter of 3 March. We are sorry that the parcel arrived late and damaged.",
    "The first law of thermodynamics says that energy can neither be created nor destroyed, only changed in form.",
    "Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung, weil bei Hannover ein Signal gestört ist.",
    "La bibliothèque ouvre à neuf heures du matin et ferme à dix-huit heures, sauf le dimanche et les jours fériés.",
    "El gato duerme en la ventana mientras la lluvia cae sobre los tejados rojos del pueblo.",
    "User: My order has not arrived yet.\nAssistant: I am sorry to hear that. Could you tell me your order number?",
    '{"id": 4711, "name": "Grace", "tags": ["admin", "ops"], "active": true, "address": {"city": "Oslo"}}',
    "Once upon a time there was a clockmaker who could not sleep, because every clock in his shop told another hour.",
    "The patient reports a dry cough for two weeks, no fever, and shortness of breath when climbing stairs.",
    "In 1969 two astronauts walked on the Moon while a third stayed in orbit and waited for them to come back.",
    "for (int i = 0; i < count; ++i) {\n    if (values[i] > limit) {\n        total += values[i];\n    }\n}\n",
    "This agreement is made between the lessor and the lessee for the flat at 12 Mill Lane, from 1 June onwards.",
    "Translate to French: good morning, how are you? Answer: bonjour, comment allez-vous ?",
    "The stock closed at 41.20, down three percent, after the company lowered its forecast for the second quarter.",
    "Roses need sun for at least six hours a day, well-drained soil, and pruning at the end of winter.",
    "A triangle with sides 3, 4 and 5 has a right angle, because 9 plus 16 equals 25.",
    "She put the letter back into the drawer, turned the key twice, and said nothing about it at dinner.",
    "git checkout -b fix-timeout && git commit -am 'Wait longer for the server' && git push origin fix-timeout",
    "Water boils at 100 degrees Celsius at sea level, but at about 93 degrees at an altitude of 2,000 metres.",
    "The committee voted seven to two in favour of the proposal, with one member absent and none abstaining.",
    "Step 1: switch off the router. Step 2: wait for thirty seconds. Step 3: switch it on and wait for the light.",
    '<ul>\n  <li><a href="/home">Home</a></li>\n  <li><a href="/about">About us</a></li>\n</ul>\n',
    "Summary: the meeting agreed to move the release to Thursday; Ana writes the notes, Tom tests the installer.",
    "When the tide goes out, the mud flats feed thousands of wading birds on their way to the south.",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144: each number is the sum of the two before it.",
)
