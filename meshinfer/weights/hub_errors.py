"""What huggingface_hub's exceptions mean, in a sentence and with what to do. They end here.

Neither message nor cause quotes a header or an address with a query: a token or a signed link
never reaches a log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from meshinfer.errors import MeshInferError, ModelNotFound, TimedOut

_NETWORK = "Check this PC's way to the hub (proxy, certificates, HF_ENDPOINT), then try again."


@contextmanager
def hub_errors(repository: str, revision: str = "") -> Iterator[None]:
    """Raises ModelNotFound (no such repository or revision, or not for this PC's token), TimedOut
    (not reached, or no sense in what it says). Nothing is chained: the client's exceptions carry
    the request with its headers."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        raise _gated(repository) from None
    except errors.RevisionNotFoundError:
        raise ModelNotFound(
            f"{repository} has no revision '{revision or 'main'}'.",
            "Give a branch, tag or commit that its page shows.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise _not_found(repository) from None
    except errors.DisabledRepoError:
        raise ModelNotFound(
            f"The hub has disabled {repository}.", "Choose another repository."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise offline(repository) from None
    except errors.HfHubHTTPError as error:
        said = str(error.response.headers.get("X-Error-Message", ""))
        raise _refused(repository, error.response.status_code, said) from None
    except Exception as error:
        # The client's network errors are those of whichever HTTP library it came with.
        if not is_network_error(error):
            raise
        raise unreachable(repository, type(error).__name__) from None


def is_network_error(error: BaseException) -> bool:
    """Whether the way to the hub failed, rather than what it said. huggingface_hub 1.x brings
    httpx, 2.x httpx2; both name their errors alike."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(names & {"TransportError", "RequestError"})


def unreadable(repository: str, why: str) -> TimedOut:
    """An answer that is none of the hub's own."""
    return TimedOut(
        f"The hub's answer about {repository} cannot be read ({why}).",
        "Check HF_ENDPOINT, and that no login page of the network answers in its place.",
    )


def unreachable(repository: str, why: str) -> TimedOut:
    return TimedOut(f"The hub cannot be reached for {repository} ({why}).", _NETWORK)


def offline(repository: str) -> ModelNotFound:
    return ModelNotFound(
        f"{repository} is not in the hub's cache on this PC, and HF_HUB_OFFLINE forbids to fetch "
        "it.",
        "Unset HF_HUB_OFFLINE, or copy the cache from a PC that has it (HF_HUB_CACHE).",
    )


def network_remedy() -> str:
    return _NETWORK


def gated_remedy(repository: str) -> str:
    return (
        f"Accept its licence at {page(repository)}, then log in with `hf auth login` or set "
        "HF_TOKEN."
    )


def page(repository: str) -> str:
    """Where a person reads about it in a browser."""
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
    return f"{endpoint}/{repository}"


def _gated(repository: str) -> MeshInferError:
    return ModelNotFound(
        f"{repository} is gated: its owner gives it to people who accepted its licence.",
        gated_remedy(repository),
    )


def _not_found(repository: str) -> MeshInferError:
    return ModelNotFound(
        f"The hub has no repository {repository}, or it is private.",
        "Check its name; for a private one log in with `hf auth login` or set HF_TOKEN.",
    )


def _refused(repository: str, status: int, said: str) -> MeshInferError:
    if status == 401 and "credentials" not in said:
        return _not_found(repository)
    if status == 401:
        return ModelNotFound(
            "The hub does not accept the token of this PC.", "Log in again with `hf auth login`."
        )
    if status == 403:
        return ModelNotFound(
            f"The hub does not let this PC's token read {repository}.",
            "Use a token that may read it.",
        )
    if status == 429 or status >= 500:
        return TimedOut(f"The hub answers {status} for {repository}.", "Try again later.")
    return ModelNotFound(f"The hub answers {status} for {repository}.", "Look at its page.")
