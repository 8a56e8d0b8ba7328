-- What the answer "always" would write into [policy], and the rule that it has to stand before.
ALTER TABLE approvals ADD COLUMN rule TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN rule_before TEXT NOT NULL DEFAULT '';
