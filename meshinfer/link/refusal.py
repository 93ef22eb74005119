"""What a failed handshake means, in words. Third-party exceptions end here.

TLS gives only reason codes; these are the ones that a stranger, a PC of another fleet, a port
scanner or an old program causes (found by running each of them, see tests/link/test_trust.py).
"""

from __future__ import annotations

import ssl

# OpenSSL's X509_V_ERR_*: the chain does not end at our fleet's certificate.
_OTHER_AUTHORITY = {2, 7, 18, 19, 20, 21}
_HOST_NAME = 62
_NAME_CONSTRAINTS = {47, 48}

_ALERTS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate: it is in no fleet",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it asks for a certificate that this PC did not show",
    "TLSV1_ALERT_UNKNOWN_CA": "it says that this PC belongs to another fleet",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this PC's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that this PC's certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept this PC's certificate",
    "UNSUPPORTED_PROTOCOL": "it offers only TLS older than 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks only TLS older than 1.3",
    "WRONG_VERSION_NUMBER": "it does not speak TLS: not a meshinfer agent",
    "HTTP_REQUEST": "it speaks HTTP without TLS: not a meshinfer agent",
    "HTTPS_PROXY_REQUEST": "it takes this PC for a proxy: not a meshinfer agent",
    "UNKNOWN_PROTOCOL": "it does not speak TLS: not a meshinfer agent",
    "NO_PROTOCOLS_AVAILABLE": "it offers no TLS version that this PC accepts",
    "RECORD_LAYER_FAILURE": "what it sent is not TLS: not a meshinfer agent",
    "PACKET_LENGTH_TOO_LONG": "what it sent is not TLS: not a meshinfer agent",
}


def handshake_reason(error: BaseException) -> str:
    """Why a handshake failed, about "it", the other side; one clause without a full stop."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_reason(error)
    if isinstance(error, ssl.SSLError):
        code = getattr(error, "reason", None) or ""  # unset on errors that Python itself makes
        return _ALERTS.get(code) or f"its TLS handshake failed ({code.lower() or 'no reason'})"
    if isinstance(error, TimeoutError | ConnectionAbortedError):
        return "it did not finish the TLS handshake in time"
    if isinstance(error, OSError):
        # asyncio sends no alert when it refuses a certificate: a member of another fleet looks the
        # same as a port scanner from here, and reads the true reason on its own side.
        return "it left during the TLS handshake: another fleet, or not a meshinfer agent"
    return f"its TLS handshake failed ({type(error).__name__})"


def is_refusal(error: BaseException) -> bool:
    """Whether trust, and not the network, is why a connection failed."""
    return isinstance(error, ssl.SSLError)


def _certificate_reason(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code in _OTHER_AUTHORITY:
        return "it belongs to another fleet"
    if code == _HOST_NAME:
        return "it is another PC than the one that was called"
    if code in _NAME_CONSTRAINTS:
        return "its certificate names something outside the fleet"
    return f"its certificate is refused ({error.verify_message})"
