"""Our error codes as PostgreSQL's SQLSTATEs, for users of psql.

A code that is not listed here has the state of its first word. The code itself is in the error's
detail, since many codes share a state. (PostgreSQL, appendix A.)
"""

from __future__ import annotations

from psycopg2 import errorcodes

DEFAULT = errorcodes.OBJECT_NOT_IN_PREREQUISITE_STATE

_STATES = {
    "sql.not_a_select": errorcodes.SYNTAX_ERROR,
    "sql.many_statements": errorcodes.SYNTAX_ERROR,
    "sql.not_maintained": errorcodes.FEATURE_NOT_SUPPORTED,
    "sql.volatile_function": errorcodes.FEATURE_NOT_SUPPORTED,
    "sql.bad_type": errorcodes.UNDEFINED_OBJECT,
    "sql.failed": errorcodes.INTERNAL_ERROR,
    "sql.plan": errorcodes.INTERNAL_ERROR,
    "view.bad_name": errorcodes.INVALID_NAME,
    "view.name_taken": errorcodes.DUPLICATE_TABLE,
    "view.not_found": errorcodes.UNDEFINED_TABLE,
    "view.not_owner": errorcodes.INSUFFICIENT_PRIVILEGE,
    "view.has_children": errorcodes.DEPENDENT_OBJECTS_STILL_EXIST,
    "view.other_group": errorcodes.FEATURE_NOT_SUPPORTED,
    "view.wait_timeout": errorcodes.QUERY_CANCELED,
    "position.bad": errorcodes.INVALID_PARAMETER_VALUE,
    "request.invalid": errorcodes.INVALID_PARAMETER_VALUE,
    "source.bad_option": errorcodes.INVALID_PARAMETER_VALUE,
    "source.not_found": errorcodes.UNDEFINED_OBJECT,
    "source.name_taken": errorcodes.DUPLICATE_OBJECT,
    "source.in_use": errorcodes.DEPENDENT_OBJECTS_STILL_EXIST,
    "source.table_missing": errorcodes.UNDEFINED_TABLE,
    "source.role_missing": errorcodes.UNDEFINED_OBJECT,
    "host.forbidden": errorcodes.INSUFFICIENT_PRIVILEGE,
    "path.forbidden": errorcodes.INSUFFICIENT_PRIVILEGE,
    "secret.forbidden": errorcodes.INSUFFICIENT_PRIVILEGE,
    "source.row_security": errorcodes.INSUFFICIENT_PRIVILEGE,
    "source.no_grant": errorcodes.INSUFFICIENT_PRIVILEGE,
    "source.not_owner": errorcodes.INSUFFICIENT_PRIVILEGE,
    "source.grant_missing": errorcodes.UNDEFINED_OBJECT,
    "sink.name_taken": errorcodes.DUPLICATE_TABLE,
    "sink.schema_missing": errorcodes.INVALID_SCHEMA_NAME,
    "sink.type_missing": errorcodes.UNDEFINED_OBJECT,
    "sink.dependents": errorcodes.DEPENDENT_OBJECTS_STILL_EXIST,
    "verify.different": errorcodes.DATA_CORRUPTED,
    "verify.clock_stands": errorcodes.DATA_CORRUPTED,
    "verify.timeout": errorcodes.QUERY_CANCELED,
    "verify.not_in_database": errorcodes.FEATURE_NOT_SUPPORTED,
    "secret.missing": errorcodes.UNDEFINED_PARAMETER,
    "state.no_space": errorcodes.DISK_FULL,
    "internal": errorcodes.INTERNAL_ERROR,
}
_BY_ENDING = {
    "privilege": errorcodes.INSUFFICIENT_PRIVILEGE,
    "login": errorcodes.INVALID_AUTHORIZATION_SPECIFICATION,
    "unreachable": errorcodes.SQLSERVER_REJECTED_ESTABLISHMENT_OF_SQLCONNECTION,
    "busy": errorcodes.LOCK_NOT_AVAILABLE,
}
_BY_FIRST_WORD = {
    "auth": errorcodes.INSUFFICIENT_PRIVILEGE,
    "format": errorcodes.INVALID_PARAMETER_VALUE,
    "registry": errorcodes.INVALID_PARAMETER_VALUE,
    "sql": errorcodes.FEATURE_NOT_SUPPORTED,
}


def sqlstate_of(code: str) -> str:
    """Return the SQLSTATE of a code.

    >>> sqlstate_of("sql.undefined_column"), sqlstate_of("source.privilege")
    ('42703', '42501')
    """
    if code in _STATES:
        return _STATES[code]
    first, _, rest = code.partition(".")
    condition = getattr(errorcodes, rest.upper(), None) if first == "sql" else None
    # Skip a class of states (two characters).
    if isinstance(condition, str) and len(condition) == 5:
        return condition
    return _BY_ENDING.get(rest) or _BY_FIRST_WORD.get(first, DEFAULT)
