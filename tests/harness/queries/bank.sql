-- Queries over the bank: the sum of balances is zero in every state.

-- name: total
SELECT sum(balance) AS total, count(*) AS accounts FROM accounts;
-- name: balances
SELECT account, owner, balance, opened FROM accounts;
-- name: by_owner
SELECT owner, count(*) AS accounts, sum(balance) AS balance, min(balance) AS low, max(balance) AS high FROM accounts GROUP BY owner;
-- name: turnover
SELECT a.account, coalesce(i.total, 0) AS received, coalesce(o.total, 0) AS paid, coalesce(i.total, 0) - coalesce(o.total, 0) - a.balance AS must_be_zero
FROM accounts a LEFT JOIN (SELECT payee, sum(amount) AS total FROM transfers GROUP BY payee) i ON i.payee = a.account
LEFT JOIN (SELECT payer, sum(amount) AS total FROM transfers GROUP BY payer) o ON o.payer = a.account;
-- name: wrong_accounts
SELECT a.account FROM accounts a JOIN (
    SELECT account, sum(amount) AS amount FROM (
        SELECT payee AS account, amount FROM transfers UNION ALL SELECT payer, -amount FROM transfers) m
    GROUP BY account) m USING (account) WHERE a.balance <> m.amount;
-- name: in_debt
SELECT owner, account FROM accounts WHERE balance < 0;
-- name: largest_transfers
SELECT id, payer, payee, amount, at FROM transfers WHERE amount = (SELECT max(amount) FROM transfers);
-- name: pairs
SELECT p.owner AS payer, r.owner AS payee, count(*) AS n, sum(t.amount) AS amount, avg(t.amount) AS mean
FROM transfers t JOIN accounts p ON p.account = t.payer JOIN accounts r ON r.account = t.payee GROUP BY p.owner, r.owner;
-- name: never_paid
SELECT account, owner FROM accounts WHERE account NOT IN (SELECT payer FROM transfers);
-- name: by_generated_column
SELECT kind, count(*) AS n, sum(amount) AS amount, max(kind || id) AS last FROM transfers GROUP BY kind;
-- name: carry_generated
SELECT * FROM transfers WHERE kind = 'large';
-- name: by_hour
SELECT date_trunc('day', at) AS day, count(*) AS n, sum(amount) AS amount FROM transfers GROUP BY date_trunc('day', at);
