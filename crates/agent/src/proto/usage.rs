//! Tokens and money, added up as integers and decimals, never as floats.

use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize};

/// What one message used, or a sum of such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenUsage {
    /// Tokens read by the model.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens written by the model.
    #[serde(default)]
    pub output_tokens: u64,
    /// The cost in the provider's currency; a decimal in a string on the wire.
    #[serde(default, deserialize_with = "cost_from_text")]
    pub cost: Decimal,
}

fn cost_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decimal, D::Error> {
    let text = String::deserialize(deserializer)?;
    let cost = Decimal::from_str_exact(&text)
        .or_else(|_| Decimal::from_scientific(&text))
        .map_err(|error| serde::de::Error::custom(format!("`{text}` is no decimal: {error}")))?;
    if cost.is_sign_negative() && !cost.is_zero() {
        return Err(serde::de::Error::custom(format!("`{text}` is negative")));
    }
    Ok(cost)
}

impl TokenUsage {
    /// Adds `other`; a sum that no longer fits stays at the largest value.
    pub fn add(&mut self, other: &Self) {
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost = self.cost.saturating_add(other.cost);
    }
}

/// What an agent may spend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// For one message.
    #[serde(default)]
    pub turn: Option<Decimal>,
    /// For one day.
    #[serde(default)]
    pub day: Option<Decimal>,
}

/// A budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BudgetExceeded {
    /// The message's own.
    #[error("the budget of {limit} for one message is used up ({spent} spent)")]
    Turn {
        /// What it may spend.
        limit: Decimal,
        /// What it spent.
        spent: Decimal,
    },
    /// The day's.
    #[error("the budget of {limit} for the day is used up ({spent} spent)")]
    Day {
        /// What may be spent.
        limit: Decimal,
        /// What was spent.
        spent: Decimal,
    },
}

impl Budget {
    /// Whether another model call may be made after `turn` and `day` were spent.
    pub fn check(&self, turn: Decimal, day: Decimal) -> Result<(), BudgetExceeded> {
        match (self.turn, self.day) {
            (Some(limit), _) if turn >= limit => Err(BudgetExceeded::Turn { limit, spent: turn }),
            (_, Some(limit)) if day >= limit => Err(BudgetExceeded::Day { limit, spent: day }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn dec(text: &str) -> Decimal {
        text.parse().unwrap()
    }

    #[test]
    fn ten_times_a_tenth_is_one() {
        let mut sum = TokenUsage::default();
        for _ in 0..10 {
            sum.add(&TokenUsage {
                input_tokens: 3,
                output_tokens: u64::MAX / 2,
                cost: dec("0.1"),
            });
        }
        assert_eq!(
            sum,
            TokenUsage {
                input_tokens: 30,
                output_tokens: u64::MAX,
                cost: dec("1.0"),
            }
        );
    }

    #[test]
    fn a_cost_is_text_and_never_negative() {
        let cost = |cost| serde_json::from_value::<TokenUsage>(json!({ "cost": cost }));
        assert_eq!(cost(json!("0.055")).unwrap().cost, dec("0.055"));
        assert_eq!(cost(json!("5.5e-2")).unwrap().cost, dec("0.055"));
        for wrong in [json!(0.055), json!("-1"), json!("free"), json!("")] {
            assert!(cost(wrong.clone()).is_err(), "{wrong}");
        }
        assert_eq!(
            serde_json::to_value(cost(json!("0.10")).unwrap()).unwrap(),
            json!({"input_tokens": 0, "output_tokens": 0, "cost": "0.10"})
        );
    }

    #[test]
    fn a_budget_holds_from_its_limit_on() {
        let budget = Budget {
            turn: Some(dec("0.50")),
            day: Some(dec("5")),
        };
        assert_eq!(budget.check(dec("0.49"), dec("4.99")), Ok(()));
        assert_eq!(
            budget.check(dec("0.5"), dec("9")),
            Err(BudgetExceeded::Turn {
                limit: dec("0.50"),
                spent: dec("0.5")
            })
        );
        assert_eq!(
            budget.check(dec("0"), dec("5.00")),
            Err(BudgetExceeded::Day {
                limit: dec("5"),
                spent: dec("5.00")
            })
        );
        assert_eq!(Budget::default().check(dec("1000"), dec("1000")), Ok(()));
    }
}
