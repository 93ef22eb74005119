"""The baselines of the fleet bench, each in a process that is pinned to one core by its parent.

    python -m tools.benches.one_core same|default|chain FOLDER

`same` and `default` are openvino_genai in our configuration and in its own; `chain` is our two
stages called one after another in one process, which is what the ring adds to.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from meshinfer.engine.configuration import StageOptions
from meshinfer.engine.paged import PagedStage
from meshinfer.engine.tokenizer import GenAiTokenizer
from meshinfer.node.even_cuts import even_cut
from meshinfer.weights.cut import cut
from meshinfer.weights.folder import open_folder
from tools.benches.split import PROMPT, chain_speed, genai_pipeline, genai_speed

TOKENS, ROUNDS = 64, 3


def main() -> None:
    kind, folder = sys.argv[1], open_folder(Path(sys.argv[2]))
    options = StageOptions(threads=1, cache_tokens=1024)
    if kind == "chain":
        ranges = even_cut(folder.shape.units, 2, inside_layer=False)
        stages = [PagedStage.load(cut(folder.xml, units), options) for units in ranges]
        prompt = GenAiTokenizer.load(folder.path).encode_chat(PROMPT)
        speeds = [chain_speed(stages, prompt, TOKENS, number) for number in range(ROUNDS)]
    else:
        pipeline = genai_pipeline(folder, options if kind == "same" else None)
        speeds = [genai_speed(pipeline, TOKENS) for _ in range(ROUNDS)]
    print(json.dumps({"tokens_per_s": statistics.median(speeds)}))


if __name__ == "__main__":
    main()
