"""Every PostgreSQL setting that changes how a value or name is read, written or compared, pinned.

`connect` applies them to each session at its start, whatever a role, a database or the environment
sets. That covers snapshot, evaluator, sink and the walsender, which writes the stream's values.
Invariant: a value has one text in all of them. Every other setting is in NOT_PINNED with the
reason; a test searches pg_settings for a setting that is in neither.
"""

from __future__ import annotations

from dataflow.types import SESSION_SETTINGS

# Besides the texts of values (`SESSION_SETTINGS`): the meaning of our statements.
_MEANING = {
    # Backslashes in our literals and in PostgreSQL's canonical text.
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    # x = NULL would be parsed as x IS NULL.
    "transform_null_equals": "off",
    # Canonical text is compared, and read, with names as they are written.
    "quote_all_identifiers": "off",
    # A GIN index would return a random part of the rows.
    "gin_fuzzy_search_limit": "0",
    # If off, a policy is an error where PostgreSQL returns the rows that the role may see.
    "row_security": "on",
    # Statements see what was committed before them; code that needs a snapshot says so.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
}
PINNED = {**SESSION_SETTINGS, **_MEANING}

# Value, first version, minor versions of backports: older servers refuse a session that names
# them. The first ends a long snapshot early; under the second, views may not be read.
_SINCE = {
    "transaction_timeout": ("0", 170000, {}),
    "restrict_nonsystem_relation_kind": ("", 170000, {14: 13, 15: 8, 16: 4}),
}

# Why the others are not pinned, by the prefixes of their names.
NOT_PINNED = {
    "statement, and each session's own": (
        *("search_path", "application_name", "statement_timeout", "lock_timeout"),
        *("idle_", "tcp_", "client_connection_check_interval", "transaction_"),
        "wal_sender_timeout",
    ),
    "order of rows and speed, never which rows": (
        *("enable_", "geqo", "cpu_", "jit", "parallel_", "min_parallel_", "max_parallel_"),
        *("seq_page_cost", "random_page_cost", "effective_", "from_collapse", "join_collapse"),
        *("constraint_exclusion", "cursor_tuple_fraction", "default_statistics_target"),
        *("plan_cache_mode", "recursive_worktable_factor", "synchronize_seqscans"),
        *("work_mem", "hash_mem_multiplier", "temp_buffers", "maintenance_", "logical_decoding_"),
        *("force_parallel_mode", "debug_parallel_query", "max_stack_depth", "temp_file_limit"),
        *("backend_flush_after", "io_", "vacuum_", "gin_pending_list_limit", "file_copy_method"),
    ),
    "where new tables and files are, and how they are stored": (
        *("default_tablespace", "temp_tablespaces", "default_table_access_method"),
        *("default_toast_compression", "wal_", "commit_", "synchronous_commit"),
    ),
    "messages, logs and figures": (
        *("lc_messages", "client_min_messages", "log_", "debug_", "trace_", "track_", "stats_"),
        *("compute_query_id", "update_process_title", "escape_string_warning", "exit_on_error"),
        *("icu_validation_level", "backtrace_functions", "jit_dump", "md5_password_warnings"),
    ),
    "what the operator refuses on purpose: the error names it": (
        *("default_transaction_read_only", "lo_compat_privileges", "check_function_bodies"),
        *("createrole_self_grant", "password_encryption", "scram_iterations"),
    ),
    "a superuser's, which no other role may set": (
        *("session_replication_role", "session_preload_libraries", "local_preload_libraries"),
        *("dynamic_library_path", "extension_", "event_triggers", "allow_", "deadlock_timeout"),
        *("ignore_checksum_failure", "zero_damaged_pages"),
    ),
    "what a function without a configuration means, which is the source's to say": (
        "default_text_search_config",
    ),
}


def later_settings(server_version: int) -> dict[str, str]:
    """Return the settings that this server has and older ones lack; version as 150018."""
    major, minor = divmod(server_version, 10000)
    return {
        name: value
        for name, (value, since, backported) in _SINCE.items()
        if server_version >= since or minor >= backported.get(major, 10000)
    }


def statements(server_version: int) -> list[str]:
    """Return the statements that pin all settings in a session."""
    settings = {**PINNED, **later_settings(server_version)}
    return [f"SET {name} TO '{value}'" for name, value in settings.items()]
