"""The process that exports: the only one that imports torch. Started by `run`.

It takes an Order from its standard input and tells News on its standard output. Whatever a library
prints goes to standard error, which the parent keeps in a file. It ends when the parent does, and
by itself when the libraries hold on to too much memory: the parent starts another.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import TextIO

from meshinfer.errors import MeshInferError, StageFailed
from meshinfer.weights.assembly import Assembly
from meshinfer.weights.export.orders import News, Order
from meshinfer.weights.export.process import SCRATCH
from meshinfer.weights.export.settings import read_settings
from meshinfer.weights.export.tensors import CheckpointTensors
from meshinfer.weights.export.torchvision_guard import hide_torchvision

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",  # everything is on the disk
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TQDM_DISABLE": "1",
}

Say = Callable[[News], None]


def work(order: Order, say: Say) -> None:
    """Raises MeshInferError."""
    hide_torchvision()
    from meshinfer.weights.export.graph import refuse_unsupported
    from meshinfer.weights.export.part import PartMaker
    from meshinfer.weights.export.range_model import load_config
    from meshinfer.weights.export.tokenizer import load_tokenizer, read_facts, save_tokenizer

    settings = read_settings(order.checkpoint)
    tensors = CheckpointTensors.open(order.checkpoint, settings.layers)
    config = load_config(order.checkpoint)
    refuse_unsupported(settings.architecture)
    if order.with_tokenizer:
        tokenizer = load_tokenizer(order.checkpoint)
        facts = read_facts(
            order.checkpoint, settings, tokenizer, order.recipe, tensors.main_dtype()
        )
        save_tokenizer(tokenizer, order.work)
        say(News(facts=facts))
    maker = PartMaker(config, tensors, order.recipe, Assembly(order.work, order.key, order.spans))
    for span in order.wanted:
        # The libraries' objects stay: looking through them whenever garbage is collected, which
        # the exporter asks for often, would take a quarter of the time.
        gc.freeze()
        maker.make(span, order.work / SCRATCH)
        say(News(made=span))
        if _resident_bytes() > order.most_memory:
            return


def _resident_bytes() -> int:
    import psutil

    gc.collect()
    _return_freed_memory()
    return int(psutil.Process().memory_info().rss)


def _return_freed_memory() -> None:
    """glibc keeps what was freed until it is asked; other systems give it back."""
    if sys.platform == "linux":
        import ctypes

        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def main() -> None:
    os.environ.update(ENVIRONMENT)
    news = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # what libraries print must not mix with the news
    sys.stdout = sys.stderr
    order = Order.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(_run(order, news))


def _run(order: Order, news: TextIO) -> int:
    def say(one: News) -> None:
        print(one.to_line(), file=news, flush=True)

    try:
        work(order, say)
    except MeshInferError as error:
        say(News(error=error))
        return 1
    except ImportError as error:
        say(News(error=StageFailed(f"A library of the export extra does not load: {error}.")))
        raise
    return 0


def _end_with_parent() -> None:
    """Standard input ends when the parent is gone."""
    sys.stdin.read()
    os._exit(2)


if __name__ == "__main__":
    main()
