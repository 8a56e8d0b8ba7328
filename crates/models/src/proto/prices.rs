//! What models cost, in dollars for a million tokens.
//!
//! The table holds what the providers published when this version was made; `[providers.NAME]
//! prices` in the configuration is stronger.

use rust_decimal::Decimal;

use super::usage::Usage;

const MILLION: Decimal = Decimal::from_parts(1_000_000, 0, 0, false, 0);

/// The price of a model, for a million tokens of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Price {
    /// Input.
    pub input: Decimal,
    /// Output.
    pub output: Decimal,
    /// Input read from the cache.
    pub cache_read: Decimal,
    /// Input written to the cache.
    pub cache_write: Decimal,
}

impl Price {
    /// What a call cost: what the provider says, where it does, else by this price.
    pub fn cost(&self, usage: &Usage) -> Decimal {
        if let Some(stated) = usage.stated_cost {
            return stated;
        }
        // An hour in the cache costs 2.0 times the input, five minutes 1.25 times.
        let hour_price = self.input.saturating_mul(Decimal::TWO);
        [
            (usage.input, self.input),
            (usage.output, self.output),
            (usage.cache_read, self.cache_read),
            (usage.cache_write, self.cache_write),
            (usage.cache_write_hour, hour_price.max(self.cache_write)),
        ]
        .into_iter()
        .fold(Decimal::ZERO, |sum, (tokens, price)| {
            let tokens = Decimal::from(tokens);
            sum.saturating_add(tokens.saturating_mul(price) / MILLION)
        })
        .normalize()
    }
}

/// Prices in cents of a cent, so that the table stays readable: 100 is one cent.
const fn price(input: i64, output: i64, cache_read: i64, cache_write: i64) -> Price {
    Price {
        input: dollars(input),
        output: dollars(output),
        cache_read: dollars(cache_read),
        cache_write: dollars(cache_write),
    }
}

const fn dollars(ten_thousandths: i64) -> Decimal {
    // No price is negative or near the limit of 32 bits.
    Decimal::from_parts(ten_thousandths as u32, 0, 0, false, 4)
}

/// By the beginning of the model's name; the longest that fits counts.
const TABLE: &[(&str, Price)] = &[
    ("claude-fable-5-1", price(100_000, 500_000, 2_500, 125_000)),
    ("claude-fable", price(100_000, 500_000, 10_000, 125_000)),
    ("claude-mythos-5-1", price(100_000, 500_000, 2_500, 125_000)),
    ("claude-mythos", price(100_000, 500_000, 10_000, 125_000)),
    ("claude-opus-5-5", price(40_000, 200_000, 2_000, 50_000)),
    ("claude-opus-4-1", price(150_000, 750_000, 15_000, 187_500)),
    ("claude-opus-4-0", price(150_000, 750_000, 15_000, 187_500)),
    (
        "claude-opus-4-2025",
        price(150_000, 750_000, 15_000, 187_500),
    ),
    ("claude-opus", price(50_000, 250_000, 5_000, 62_500)),
    ("claude-3-opus", price(150_000, 750_000, 15_000, 187_500)),
    ("claude-sonnet-5-5", price(20_000, 100_000, 1_000, 25_000)),
    ("claude-sonnet-5", price(20_000, 100_000, 2_000, 25_000)),
    ("claude-sonnet", price(30_000, 150_000, 3_000, 37_500)),
    ("claude-3-7-sonnet", price(30_000, 150_000, 3_000, 37_500)),
    ("claude-3-5-sonnet", price(30_000, 150_000, 3_000, 37_500)),
    // Its price for long prompts: a budget is never passed unseen.
    ("claude-haiku-5-5", price(5_000, 25_000, 500, 6_250)),
    ("claude-haiku", price(10_000, 50_000, 1_000, 12_500)),
    ("claude-3-5-haiku", price(8_000, 40_000, 800, 10_000)),
    ("claude-3-haiku", price(2_500, 12_500, 300, 3_000)),
    ("gpt-5.4", price(25_000, 150_000, 2_500, 25_000)),
    ("gpt-5.4-mini", price(7_500, 45_000, 750, 7_500)),
    ("gpt-5.4-nano", price(2_000, 12_500, 200, 2_000)),
    ("gpt-5.2", price(17_500, 140_000, 1_750, 17_500)),
    ("gpt-5", price(12_500, 100_000, 1_250, 12_500)),
    ("gpt-5-mini", price(2_500, 20_000, 250, 2_500)),
    ("gpt-5-nano", price(500, 4_000, 50, 500)),
    ("gpt-4.1", price(20_000, 80_000, 5_000, 20_000)),
    ("gpt-4.1-mini", price(4_000, 16_000, 1_000, 4_000)),
    ("gpt-4.1-nano", price(1_000, 4_000, 250, 1_000)),
    ("gpt-4o", price(25_000, 100_000, 12_500, 25_000)),
    ("gpt-4o-mini", price(1_500, 6_000, 750, 1_500)),
    ("o4-mini", price(11_000, 44_000, 2_750, 11_000)),
    ("o3", price(20_000, 80_000, 5_000, 20_000)),
    ("o1", price(150_000, 600_000, 75_000, 150_000)),
];

/// The published price of a model; `None` for one that the table does not know.
///
/// A vendor before the name, as routers write it (`anthropic/claude-..`), is skipped.
pub fn published(model: &str) -> Option<Price> {
    let name = model.rsplit('/').next().unwrap_or(model);
    TABLE
        .iter()
        .filter(|(prefix, _)| name.starts_with(prefix))
        .max_by_key(|(prefix, _)| prefix.len())
        .map(|(_, price)| *price)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dec(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_name_counts() {
        let input = |model: &str| published(model).map(|price| price.input.normalize());
        assert_eq!(input("claude-sonnet-5-5"), Some(dec("2")));
        assert_eq!(input("claude-sonnet-4-5-20250929"), Some(dec("3")));
        assert_eq!(input("anthropic/claude-opus-4-1"), Some(dec("15")));
        assert_eq!(input("gpt-5-mini-2025-08-07"), Some(dec("0.25")));
        assert_eq!(input("llama3"), None);
    }

    #[test]
    fn a_call_costs_what_the_table_says() {
        let usage = Usage {
            input: 1_000,
            cache_read: 10_000,
            cache_write: 2_000,
            cache_write_hour: 1_000,
            output: 500,
            stated_cost: None,
        };
        let price = published("claude-sonnet-4-5").unwrap();
        // 0.003 + 0.0075 + 0.003 + 0.0075 + 0.006
        assert_eq!(price.cost(&usage), dec("0.027"));
        let stated = Usage {
            stated_cost: Some(dec("0.5")),
            ..usage
        };
        assert_eq!(price.cost(&stated), dec("0.5"));
    }

    proptest! {
        #[test]
        fn no_usage_overflows_or_is_negative(input: u64, output: u64, read: u64) {
            let usage = Usage { input, output, cache_read: read, ..Usage::default() };
            for (_, price) in TABLE {
                prop_assert!(price.cost(&usage) >= Decimal::ZERO);
            }
        }
    }
}
