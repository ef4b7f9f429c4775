-- Queries over events: every awkward type carried, compared, grouped, and computed in PostgreSQL.

-- name: carry
SELECT * FROM events;
-- name: carry_devices
SELECT * FROM devices;
-- name: json_operators
SELECT id, payload ->> 'kind' AS kind, (payload ->> 'n')::integer AS n, payload -> 'user' AS "user", payload #>> '{user,name}' AS name, payload ? 'flag' AS flagged FROM events;
-- name: json_contains
SELECT id, kind FROM events WHERE payload @> '{"kind": "amber"}';
-- name: json_group
SELECT payload ->> 'kind' AS kind, count(*) AS n, sum((payload ->> 'n')::numeric) AS total, max((payload -> 'user' ->> 'id')::int) AS top FROM events GROUP BY payload ->> 'kind';
-- name: jsonb_group
SELECT payload -> 'user' AS who, count(*) AS n FROM events GROUP BY payload -> 'user';
-- name: json_paths
SELECT id, jsonb_path_query_first(payload, '$.tags[0]') AS first, jsonb_typeof(payload -> 'flag') AS type, raw ->> 'kind' AS raw_kind FROM events;
-- name: arrays
SELECT id, tags[1] AS first, cardinality(numbers) AS n, 3 = ANY (numbers) AS has_three, tags || 'end'::text AS longer, numbers && ARRAY[1, 2] AS overlaps FROM events;
-- name: group_by_enum
SELECT mood, count(*) AS n, min(at) AS first, max(day) AS last_day, min(mood) AS low, max(mood) AS high FROM events GROUP BY mood;
-- name: enum_order
SELECT id, mood > 'sad' AS better, mood = 'fine' AS fine, mood::text || '!' AS loud FROM events WHERE mood >= 'fine';
-- name: global_enum
SELECT min(mood) AS low, max(mood) AS high, count(DISTINCT mood) AS moods FROM events WHERE level = 8;
-- name: uuid_join
SELECT e.id, d.since, d.label, e.kind FROM events e JOIN devices d ON d.device = e.id;
-- name: uuid_left_join_enum
SELECT e.id, d.label FROM events e LEFT JOIN devices d ON d.device = e.id AND d.mood = e.mood;
-- name: join_on_enum_and_text
SELECT d.label, count(*) AS n FROM devices d JOIN events e ON e.mood = d.mood AND e.tags[1] = d.label GROUP BY d.label;
-- name: bytea
SELECT body, count(*) AS n, max(length(body)) AS bytes, min(encode(body, 'base64')) AS text FROM events GROUP BY body;
-- name: intervals
SELECT id, span, span * 2 AS twice, at + span AS later, span > interval '1 hour' AS is_long, extract(epoch FROM span) AS seconds, justify_hours(span) AS tidy FROM events;
-- name: interval_aggregates
SELECT kind, min(span) AS shortest, max(span) AS longest, count(DISTINCT span) AS spans FROM events GROUP BY kind;
-- name: dates
SELECT id, day, day + 1 AS next, day > '2023-06-01' AS later, day = 'infinity' AS forever FROM events WHERE day < date '5874897-12-31';
-- name: date_group
SELECT day, count(*) AS n FROM events GROUP BY day;
-- name: clock
SELECT clock, zoned, count(*) AS n, clock > '12:00' AS afternoon FROM events GROUP BY clock, zoned;
-- name: clock_extremes
SELECT kind, min(clock) AS first, max(clock) AS last, min(stamp) AS stamp, max(at) AS at FROM events GROUP BY kind;
-- name: addresses
SELECT address, count(*) AS n, max(masklen(address)) AS bits FROM events WHERE address IS NOT NULL GROUP BY address;
-- name: address_order
SELECT kind, min(host(address)) AS low, count(DISTINCT address) AS n, bool_or(address << inet '10.0.0.0/8') AS inside FROM events GROUP BY kind;
-- name: ranges
SELECT id, range, range @> 3 AS holds, lower(range) AS low, isempty(range) AS empty FROM events WHERE range && int4range(2, 9);
-- name: domain
SELECT level, level + 1 AS more, count(*) AS n, avg(level) AS mean FROM events GROUP BY level;
-- name: domain_sums
SELECT kind, sum(level) AS total, max(level) AS top, min(level) AS low FROM events GROUP BY kind;
-- name: timestamps
SELECT id, at, stamp, at > '2024-01-01' AS recent, stamp::date AS day, isfinite(at) AS finite, date_trunc('day', stamp) AS midnight FROM events;
-- name: word_counts
SELECT kind, word_count(kind) AS words, kind ILIKE 'error%' AS is_error, count(*) AS n FROM events GROUP BY kind;
-- name: errors
SELECT id, regexp_match(kind, ':\s*(\w+)') AS what, to_tsvector('simple', kind) @@ to_tsquery('simple', 'error & disk') AS disk FROM events WHERE kind ~* '^error';
-- name: composite_key
SELECT device, since, label, settings ->> 'kind' AS kind FROM devices WHERE since > '2000-01-01';
-- name: jsonb_join
SELECT e.id, d.device FROM events e JOIN devices d ON e.payload -> 'kind' = d.settings -> 'kind' AND d.since < e.at;
-- name: distinct_types
SELECT DISTINCT mood, clock, body FROM events;
-- name: union_types
SELECT id, mood FROM events UNION SELECT device, mood FROM devices;
-- name: not_in_uuid
SELECT id FROM events WHERE id NOT IN (SELECT device FROM devices);
-- name: array_group
SELECT numbers, count(*) AS n, min(tags) AS low FROM events GROUP BY numbers;
