-- Nexmark's queries, ties broken by price and moment; windows of time are as long as these few rows need.

-- name: q0
SELECT auction, bidder, price, date_time FROM bid;
-- name: q1
SELECT auction, bidder, 0.908 * price AS price, date_time FROM bid;
-- name: q2
SELECT auction, price FROM bid WHERE auction % 3 = 0;
-- name: q3
SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA');
-- name: q4
SELECT q.category, avg(q.final) AS final
FROM (SELECT max(b.price) AS final, a.category FROM auction a, bid b
      WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.category) q
GROUP BY q.category;
-- name: q5
WITH counted AS (
    SELECT b.auction, w.start, count(*) AS num
    FROM bid b CROSS JOIN LATERAL generate_series(date_bin('30 minutes', b.date_time, '1970-01-01') - interval '90 minutes',
        date_bin('30 minutes', b.date_time, '1970-01-01'), interval '30 minutes') AS w(start)
    GROUP BY b.auction, w.start)
SELECT c.auction, c.start, c.num FROM counted c
JOIN (SELECT start, max(num) AS most FROM counted GROUP BY start) m ON m.start = c.start AND c.num >= m.most;
-- name: q6
SELECT q.seller, q.id, avg(q.final) OVER (PARTITION BY q.seller ORDER BY q.date_time, q.id ROWS BETWEEN 10 PRECEDING AND CURRENT ROW) AS mean
FROM (SELECT max(b.price) AS final, a.seller, a.id, max(b.date_time) AS date_time FROM auction a, bid b
      WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires GROUP BY a.id, a.seller) q;
-- name: q7
SELECT b.auction, b.price, b.bidder, b.date_time FROM bid b
JOIN (SELECT max(price) AS most, date_bin('1 hour', date_time, '1970-01-01') AS start FROM bid GROUP BY 2) m
  ON b.price = m.most AND b.date_time >= m.start AND b.date_time < m.start + interval '1 hour';
-- name: q8
SELECT p.id, p.name, p.start
FROM (SELECT id, name, date_bin('6 hours', date_time, '1970-01-01') AS start FROM person GROUP BY 1, 2, 3) p
JOIN (SELECT seller, date_bin('6 hours', date_time, '1970-01-01') AS start FROM auction GROUP BY 1, 2) a
  ON p.id = a.seller AND p.start = a.start;
-- name: q9
SELECT id, item, initial_bid, reserve, seller, category, auction, bidder, price
FROM (SELECT a.*, b.auction, b.bidder, b.price,
             row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.bidder) AS place
      FROM auction a, bid b WHERE a.id = b.auction AND b.date_time BETWEEN a.date_time AND a.expires) s
WHERE place <= 1;
-- name: q10
SELECT auction, bidder, price, date_time, to_char(date_time, 'YYYY-MM-DD') AS day, to_char(date_time, 'HH24:MI') AS minute FROM bid;
-- name: q11
SELECT bidder, count(*) AS bids, min(date_time) AS since, max(date_time) + interval '6 hours' AS until
FROM (SELECT bidder, date_time, sum(is_new) OVER (PARTITION BY bidder ORDER BY date_time) AS session
      FROM (SELECT bidder, date_time, CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
                   > interval '6 hours' THEN 1 ELSE 0 END AS is_new FROM bid) f) s
GROUP BY bidder, session;
-- name: q12
SELECT bidder, count(*) AS bids, date_bin('1 hour', arrived, '1970-01-01 00:00+00') AS start FROM bid GROUP BY bidder, 3;
-- name: q13
SELECT b.auction, b.bidder, b.price, b.date_time, s.value FROM bid b JOIN side_input s ON b.auction % 10 = s.key;
-- name: q14
SELECT auction, bidder, 0.908 * price AS price,
       CASE WHEN extract(hour FROM date_time) BETWEEN 8 AND 18 THEN 'dayTime'
            WHEN extract(hour FROM date_time) <= 6 OR extract(hour FROM date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END AS bid_time_type,
       count_char(url, 'c') AS c_counts
FROM bid WHERE 0.908 * price > 9 AND 0.908 * price < 30;
-- name: q15
SELECT to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS total_bids,
       count(*) FILTER (WHERE price < 10) AS rank1_bids, count(*) FILTER (WHERE price >= 10 AND price < 30) AS rank2_bids,
       count(DISTINCT bidder) AS total_bidders, count(DISTINCT bidder) FILTER (WHERE price < 10) AS rank1_bidders,
       count(DISTINCT auction) AS total_auctions, count(DISTINCT auction) FILTER (WHERE price >= 30) AS rank3_auctions
FROM bid GROUP BY to_char(date_time, 'YYYY-MM-DD');
-- name: q16
SELECT channel, to_char(date_time, 'YYYY-MM-DD') AS day, max(to_char(date_time, 'HH24:MI')) AS minute, count(*) AS total_bids,
       count(DISTINCT bidder) FILTER (WHERE price < 20) AS rank1_bidders, count(DISTINCT auction) AS total_auctions
FROM bid GROUP BY channel, to_char(date_time, 'YYYY-MM-DD');
-- name: q17
SELECT auction, to_char(date_time, 'YYYY-MM-DD') AS day, count(*) AS total_bids, count(*) FILTER (WHERE price < 10) AS rank1_bids,
       min(price) AS min_price, max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
FROM bid GROUP BY auction, to_char(date_time, 'YYYY-MM-DD');
-- name: q18
SELECT auction, bidder, price, channel, url, date_time
FROM (SELECT *, row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, price, channel COLLATE "C", url COLLATE "C") AS place FROM bid) s
WHERE place <= 1;
-- name: q19
SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder, channel COLLATE "C", url COLLATE "C") AS place FROM bid) s
WHERE place <= 10;
-- name: q20
SELECT b.auction, b.bidder, b.price, b.channel, b.url, b.date_time, a.item, a.initial_bid, a.reserve, a.expires, a.seller, a.category
FROM bid b JOIN auction a ON b.auction = a.id WHERE a.category = 10;
-- name: q21
SELECT auction, bidder, price, channel,
       CASE WHEN lower(channel) = 'apple' THEN '0' WHEN lower(channel) = 'google' THEN '1'
            WHEN lower(channel) = 'facebook' THEN '2' WHEN lower(channel) = 'baidu' THEN '3'
            ELSE (regexp_match(url, '(&|^)channel_id=([^&]*)'))[2] END AS channel_id
FROM bid
WHERE (regexp_match(url, '(&|^)channel_id=([^&]*)'))[2] IS NOT NULL OR lower(channel) IN ('apple', 'google', 'facebook', 'baidu');
-- name: q22
SELECT auction, bidder, price, channel, split_part(url, '/', 4) AS dir1, split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid;
