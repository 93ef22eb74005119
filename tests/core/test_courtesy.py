from __future__ import annotations

import threading

from meshinfer.core.courtesy import give_way


def test_it_comes_back_also_when_nobody_waits() -> None:
    for _ in range(1000):
        give_way()


def test_it_comes_back_on_any_thread() -> None:
    threads = [threading.Thread(target=lambda: [give_way() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
