"""Questions of eight kinds, as the paper has them, in words of our own; and one whose answer is
mostly a copy of it."""

from __future__ import annotations

KINDS = {
    "factual": "Which planets of the solar system have rings? Say what the rings are made of, who "
    "discovered them and when, and how they differ from each other.",
    "reasoning": "A train leaves at 9:40. It drives 210 km at 84 km/h, stands for 25 minutes, then "
    "drives 96 km at 64 km/h. When does it arrive? Show every step of the calculation, then check "
    "the result in another way.",
    "code": "Write a Python class for a least-recently-used cache with the methods get, put and "
    "clear, a maximum size, type hints and docstrings. Then write three unit tests for it.",
    "list": "List fifteen things to check before an office moves to another building. Number them "
    "and give each one sentence of explanation.",
    "creative": "Write the beginning of a short story about a lighthouse keeper who finds a letter "
    "from herself in a bottle. Make it strange and a little sad.",
    "technical": "Explain how TCP decides how fast it may send: slow start, congestion avoidance, "
    "what a lost packet changes, and what fast retransmit is for.",
    "chat": "I start a new job on Monday and I am quite nervous about it. What could I do this "
    "weekend so that I feel better prepared?",
    "translation": "Translate into German: The meeting about the new building has been moved to "
    "Thursday afternoon. Please bring the plans of the second floor and the list of all rooms that "
    "need more power sockets. The caretaker will show us the cellar, where the old server stood "
    "until last year. Afterwards there will be coffee and cake in the kitchen, and everybody who "
    "has helped with the move is invited.",
}

COPIED = """Item | Room | Owner | Moves on
Printer, colour, large | 2.14 | Facilities | Tuesday morning
Printer, black and white | 2.15 | Facilities | Tuesday morning
Plotter with stand | 2.16 | Drawing office | Tuesday afternoon
Server rack, empty | 0.03 | Computing | Wednesday morning
Server rack, with switches | 0.03 | Computing | Wednesday afternoon
Conference table, oak | 3.01 | Management | Thursday morning
Twelve chairs, grey | 3.01 | Management | Thursday morning
Whiteboard on wheels | 3.02 | Everybody | Thursday afternoon"""

COPY = (
    "Here is a table. Give it back whole and unchanged, but with 'Friday' in the place of "
    f"'Tuesday'. Write nothing else.\n\n{COPIED}"
)
