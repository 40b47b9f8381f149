"""What the search box of the built documentation finds: `python -m tests.docs_search DIRECTORY`.

Ranks pages for a query as Sphinx's search does in the browser (titles, keywords, words of the
text), and fails where what people type doesn't find the page that answers among the first three.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

# What people type, and the pages that answer.
QUERIES = {
    "custom optimizer": ["guides/write_your_own"],
    "accumulated sgd": ["guides/write_your_own"],
    "flops": ["guides/cost"],
    "backward pass": ["guides/cost"],
    "measure": ["guides/cost"],
    "gradienttape": ["coming_from/torch_keras", "faq"],
    "hook": ["guides/nodes"],
    "intercept": ["guides/nodes"],
    "gradient at a node": ["guides/nodes"],
    "unaggregated": ["start/per_example"],
    "per-example gradients": ["start/per_example", "guides/per_example_gradients"],
    "keras 3": ["coming_from/keras_on_jax"],
    "stateless_call": ["coming_from/keras_on_jax"],
    "numpyro": ["guides/interop"],
    "haiku": ["guides/interop"],
    "torch": ["coming_from/torch_keras"],
    "tensorflow": ["coming_from/torch_keras"],
    "mnist": ["start/first_optimizer"],
    "learning-rate schedule": ["faq", "api/schedules"],
    "schedules": ["api/schedules"],
    "freeze layers": ["faq"],
    "momentum": ["guides/state_explained"],
    "slots": ["guides/state_explained"],
    "jacobian": ["guides/jacobians"],
    "levenberg-marquardt": ["guides/lm_training"],
    "curve_fit": ["start/first_fit"],
    "outliers": ["guides/robust_fits"],
    "l-bfgs": ["guides/minimize"],
    "differential privacy": ["guides/private_training"],
    "vanishing gradients": ["guides/health"],
    "tensorboard": ["guides/health"],
    "checkpoint": ["guides/interop"],
    "lstm": ["guides/recurrent"],
    "pinn": ["guides/pinns"],
    "hessian": ["guides/curvature"],
    "hyperparameter sweep": ["guides/sweeps"],
    "which optimizer": ["choose"],
    "scipy": ["coming_from/scipy_lmfit_jaxopt"],
    "mixed precision": ["guides/precision"],
    "bfloat16": ["guides/precision"],
    "embeddings": ["guides/precision"],
    "muon": ["guides/matrix_optimizers"],
    "shampoo": ["guides/matrix_optimizers"],
    "sharding": ["guides/many_devices"],
    "zero": ["guides/many_devices"],
    "federated learning": ["guides/federated"],
    "pretrained weights": ["guides/given_weights", "guides/federated"],
    "fine-tuning": ["guides/given_weights"],
    "batch normalisation": ["guides/trained_or_state"],
    "update_ops": ["guides/trained_or_state"],
    "trainable": ["guides/trained_or_state"],
    "optax": ["coming_from/optax", "guides/interop"],
    "multisteps": ["coming_from/optax"],
    "loss functions": ["guides/losses"],
    "gan": ["gallery/minimax"],
    "autoencoder": ["gallery/autoencoder"],
    "transformer": ["gallery/transformer"],
    "meta-learning": ["gallery/meta_learning"],
    "ellipse": ["gallery/circle_ellipse"],
    "peak fitting": ["gallery/peaks"],
    "dose-response": ["gallery/dose_response"],
    "ode": ["gallery/predator_prey"],
    "bundle adjustment": ["gallery/bundle_adjustment"],
    "camera calibration": ["gallery/camera_calibration"],
    "image classifier": ["gallery/image_classifier"],
    "rosenbrock": ["gallery/paths"],
}
AMONG = 3


def read_index(directory: Path) -> dict[str, Any]:
    """The search index that a build left."""
    text = (directory / "searchindex.js").read_text()
    return json.loads(text[text.index("{") : text.rindex("}") + 1])


def ranked(index: dict[str, Any], query: str) -> list[str]:
    """The pages that a query finds, the best first, each once."""
    scores: dict[int, float] = {}

    def found(page: int, score: float) -> None:
        scores[page] = max(scores.get(page, 0), score)

    for title, places in index["alltitles"].items():
        if query in title.lower() and len(query) >= len(title) / 2:
            for page, _ in places:
                found(page, round(15 * len(query) / len(title)) + (index["titles"][page] == title))
    for entry, places in index["indexentries"].items():
        if query in entry and len(query) >= len(entry) / 2:
            for page, _, main in places:
                # what isn't marked as the main place comes behind everything else
                found(page, round(100 * len(query) / len(entry)) if main else 1)
    for page, score in _words(index, query).items():
        found(page, score)
    return [index["docnames"][page] for page in sorted(scores, key=lambda page: -scores[page])]


def _words(index: dict[str, Any], query: str) -> dict[int, float]:
    """The pages that have all words of a query, by the best place where one stands."""
    words = [_stem(word) for word in re.findall(r"\w+", query)]
    by_word: list[dict[int, float]] = []
    for word in words:
        pages: dict[int, float] = {}
        for table, whole, part in ((index["terms"], 5, 2), (index["titleterms"], 15, 7)):
            hits = [word] if word in table else [t for t in table if len(word) > 2 and word in t]
            for hit in hits:
                places = table[hit] if isinstance(table[hit], list) else [table[hit]]
                for page in places:
                    pages[page] = max(pages.get(page, 0), whole if hit == word else part)
        by_word.append(pages)
    common = set.intersection(*map(set, by_word)) if by_word else set()
    return {page: max(pages[page] for pages in by_word) for page in common}


def _stem(word: str) -> str:
    from sphinx.search.en import SearchEnglish

    return SearchEnglish({}).stem(word.lower())


def main(directory: Path) -> int:
    """Prints the rank of every answer; how many queries fail."""
    index, failed = read_index(directory), 0
    for query, answers in QUERIES.items():
        pages = ranked(index, query)
        ranks = [pages.index(a) + 1 for a in answers if a in pages]
        good = bool(ranks) and min(ranks) <= AMONG
        failed += not good
        if not good:
            print(f"search: {query!r} finds {pages[:AMONG]}, not {' or '.join(answers)}")
    print(f"search: {len(QUERIES) - failed} of {len(QUERIES)} queries find their page in {AMONG}")
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
