//! The two views: their circuits, and the rows of their outputs.

use anyhow::Result;
use dbsp::algebra::F64;
use dbsp::operator::Max;
use dbsp::typed_batch::IndexedZSetReader;
use dbsp::utils::{Tup2, Tup3, Tup4};
use dbsp::{RootCircuit, ZWeight};
use serde_json::{Value, json};

use crate::tables::{Input, Source};

const CANCELLED: &str = "cancelled";

/// A view. output: what the last epoch changed, as rows with weights.
pub struct View {
    pub tables: Vec<Box<dyn Input>>,
    pub output: Box<dyn Fn() -> Vec<(Value, ZWeight)> + Send>,
}

/// Orders join customers, count and sum by region and segment.
pub fn w1(circuit: &RootCircuit, source: &Source) -> Result<View> {
    let (region, segment) = (source.texts("region"), source.texts("segment"));
    let (customers, customers_input) = source.table(
        circuit,
        ("customers", &["customer_id", "region", "segment"]),
        move |row| Tup2(region(row[0]), segment(row[1])),
        |customer, groups| Some((customer, groups.clone())),
    )?;
    let status = source.texts("status");
    let (orders, orders_input) = source.table(
        circuit,
        ("orders", &["order_id", "customer_id", "status", "amount"]),
        move |row| Tup3(row[0], status(row[1]), row[2]),
        |_, Tup3(customer, status, amount)| (status != CANCELLED).then_some((*customer, *amount)),
    )?;
    let output = orders
        .join_index(&customers, |_, amount, groups| Some((groups.clone(), *amount)))
        .aggregate_linear(|amount| Tup2(1i64, *amount))
        .accumulate_output();
    let rows = move || {
        let changed = output.concat().consolidate();
        let rows = changed.iter().map(|(Tup2(region, segment), Tup2(count, total), weight)| {
            (json!([region, segment, count, total]), weight)
        });
        rows.collect()
    };
    Ok(View { tables: vec![customers_input, orders_input], output: Box::new(rows) })
}

/// The highest bid of each auction while it was open, then the average of each category.
pub fn w2r(circuit: &RootCircuit, source: &Source) -> Result<View> {
    let (auctions, auctions_input) = source.table(
        circuit,
        ("auction", &["id", "seller", "category", "ts", "expires"]),
        |row| Tup4(row[0], row[1], row[2], row[3]),
        |id, Tup4(_, category, from, to)| Some((id, Tup3(*category, *from, *to))),
    )?;
    let (bids, bids_input) = source.table(
        circuit,
        ("bid", &["bid_id", "auction", "bidder", "price", "ts"]),
        |row| Tup4(row[0], row[1], row[2], row[3]),
        |_, Tup4(auction, _, price, at)| Some((*auction, Tup2(*price, *at))),
    )?;
    let output = auctions
        .join_index(&bids, |id, Tup3(category, from, to), Tup2(price, at)| {
            (from <= at && at <= to).then_some((Tup2(*id, *category), *price))
        })
        .aggregate(Max)
        .map_index(|(Tup2(_, category), price)| (*category, *price))
        .aggregate_linear(|price| Tup2(1i64, *price))
        .map_index(|(category, Tup2(count, total))| {
            (*category, F64::new(*total as f64 / *count as f64))
        })
        .accumulate_output();
    let rows = move || {
        let changed = output.concat().consolidate();
        let rows = changed
            .iter()
            .map(|(category, average, weight)| (json!([category, average.into_inner()]), weight));
        rows.collect()
    };
    Ok(View { tables: vec![auctions_input, bids_input], output: Box::new(rows) })
}
