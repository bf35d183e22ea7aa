"""The formats that are enforced, as regular languages no larger than what the RFCs allow.

A format outside this table is an annotation: the standard lets an implementation ignore it. Differences on the small side:
leap seconds only as ``23:59:60Z``; ``email`` without quoted local parts; ``uri`` and its kin in ASCII.
"""

from __future__ import annotations

from functools import lru_cache

from grammar_service.regex_resolve import whole_language
from grammar_service.regex_tree import Tree

_LEAP = r"(?:(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
_DATE = (
    r"(?:(?:(?!0000)\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|"
    r"02-(?:0[1-9]|1\d|2[0-8])))|" + _LEAP + ")"
).replace("(?!0000)\\d{4}", r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])")
_ZONE = r"(?:[zZ]|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_TIME = rf"(?:(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?{_ZONE}|23:59:60(?:\.\d+)?[zZ])"
_DURATION = (
    r"P(?:\d+W|(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)(?:T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))?|"
    r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S))"
)
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H16 = r"[0-9a-fA-F]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = "|".join(
    [rf"(?:{_H16}:){{6}}{_LS32}", rf"::(?:{_H16}:){{5}}{_LS32}"]
    + [rf"(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LS32}" for n in range(5)]
    + [rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}", rf"(?:(?:{_H16}:){{0,6}}{_H16})?::"]
)
_ATOM = r"[a-zA-Z0-9!#$%&'*+\-/=?^_`{|}~]+"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_HOSTNAME}|\[{_IPV4}\])"
_UUID = r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
_PCHAR = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=:@]|%[0-9a-fA-F]{2})"
_REG_NAME = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=]|%[0-9a-fA-F]{2})*"
_AUTHORITY = rf"(?:(?:[a-zA-Z0-9\-._~!$&'()*+,;=:]|%[0-9a-fA-F]{{2}})*@)?(?:\[(?:{_IPV6})\]|{_REG_NAME})(?::\d*)?"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_PATHS = rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_PCHAR}+(?:/{_PCHAR}*)*|)"
_SEGMENT_NC = r"(?:[a-zA-Z0-9\-._~!$&'()*+,;=@]|%[0-9a-fA-F]{2})+"
_RELATIVE = rf"(?://{_AUTHORITY}(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?|{_SEGMENT_NC}(?:/{_PCHAR}*)*|){_TAIL}"
_URI = rf"[a-zA-Z][a-zA-Z0-9+\-.]*:{_PATHS}{_TAIL}"
_POINTER = r"(?:/(?:[^/~]|~[01])*)*"

_VARNAME = r"(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9a-fA-F]{2}))*(?::[1-9]\d{0,3}|\*)?"
_TEMPLATE = rf"(?:[A-Za-z0-9\-._~:/?#\[\]@!$&()*+,;=]|%[0-9a-fA-F]{{2}}|\{{[+#./;?&]?{_VARNAME}(?:,{_VARNAME})*\}})*"
# Regexes that every dialect reads alike: no look-around, groups two deep.
_IN_CLASS = r"(?:[A-Za-z0-9_ .,:;/@#%'\"]|a-z|A-Z|0-9|\\[dws.\-\]\\])"
_ATOM_RX = rf"(?:[A-Za-z0-9_ .,:;/@#%&=<>!~'\"-]|\\[dDwWsS.\\/+*?()\[\]{{}}|^$-]|\[\^?{_IN_CLASS}+-?\])"
_SAME_DIGITS = "|".join(f"{digit},[{digit}-9]" for digit in range(1, 10))
_COUNTED = rf"(?:[*+?]|\{{(?:[1-9]\d?,?|0,[1-9]\d?|[1-9],[1-9]\d|{_SAME_DIGITS})\}})?"


def _regexes(depth: int) -> str:
    group = rf"|\((?:\?:)?{_regexes(depth - 1)}\)" if depth else ""
    piece = rf"(?:(?:{_ATOM_RX}{group}){_COUNTED})*"
    return rf"{piece}(?:\|{piece})*"


_TABLE = {
    "date": _DATE, "time": _TIME, "date-time": f"{_DATE}[tT]{_TIME}", "duration": _DURATION, "hostname": _HOSTNAME,
    "ipv4": _IPV4, "ip-address": _IPV4, "ipv6": _IPV6, "email": _EMAIL, "idn-email": _EMAIL, "uuid": _UUID, "uri": _URI,
    "iri": _URI, "uri-reference": f"(?:{_URI}|{_RELATIVE})", "iri-reference": f"(?:{_URI}|{_RELATIVE})",
    "json-pointer": _POINTER, "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
    "idn-hostname": _HOSTNAME, "uri-template": _TEMPLATE, "regex": rf"\^?{_regexes(2)}\$?",
}  # fmt: skip
KNOWN_FORMATS = frozenset(_TABLE)


@lru_cache(maxsize=64)
def format_language(name: str) -> Tree:
    return whole_language(_TABLE[name])
