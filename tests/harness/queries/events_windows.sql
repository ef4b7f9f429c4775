-- Window queries over events: order and arguments of every awkward type.

-- name: window_awkward_order
SELECT id, row_number() OVER (PARTITION BY mood ORDER BY at, id) AS place, rank() OVER (ORDER BY mood) AS mood, rank() OVER (ORDER BY payload) AS payload, rank() OVER (ORDER BY numbers DESC) AS numbers, dense_rank() OVER (ORDER BY range) AS range, rank() OVER (ORDER BY span, clock) AS span, rank() OVER (ORDER BY address, zoned DESC) AS address FROM events;
-- name: window_awkward_values
SELECT id, lag(payload) OVER w AS payload, lead(tags) OVER w AS tags, first_value(range) OVER w AS range, last_value(raw) OVER w AS raw, nth_value(body, 2) OVER w AS body, lag(mood, 1, 'glad') OVER w AS mood, max(mood) OVER w AS best, max(span) OVER w AS longest, sum(span) OVER w AS spans, avg(span) OVER (w ROWS 2 PRECEDING) AS mean, lag(level, 1, 0) OVER w AS level FROM events WINDOW w AS (PARTITION BY kind ORDER BY id);
-- name: window_awkward_ranges
SELECT id, count(*) OVER (ORDER BY clock RANGE BETWEEN '1 hour' PRECEDING AND '30 min' FOLLOWING) AS clock, count(*) OVER (ORDER BY span RANGE BETWEEN '1 day' PRECEDING AND CURRENT ROW) AS span, count(*) OVER (ORDER BY at RANGE BETWEEN '1 mon' PRECEDING AND '1 mon' FOLLOWING) AS at, count(*) OVER (ORDER BY stamp DESC RANGE BETWEEN '2 days' PRECEDING AND '5 years' FOLLOWING) AS stamp, count(*) OVER (ORDER BY level RANGE 1 PRECEDING) AS level FROM events;
-- name: window_awkward_aggregates
SELECT id, array_agg(payload) OVER w AS payloads, array_agg(mood) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS moods, array_agg(level) OVER (w GROUPS 1 PRECEDING) AS levels, max(numbers) OVER w AS numbers, word_count(string_agg(kind, ' ') OVER w) AS words, min(address) OVER w AS address FROM events WINDOW w AS (PARTITION BY kind ORDER BY id);
-- name: window_by_uuid_groups
SELECT device, count(*) AS n, sum(count(*)) OVER (ORDER BY device) AS running, row_number() OVER (ORDER BY max(since) DESC, device) AS place FROM devices GROUP BY device;
