//! Rules that are added to a file that a person wrote.

use super::*;

const WRITTEN: &str = "\
# mine
[policy] # what agents may do
rules = [
    # never
    { command = \"rm **\", action = \"deny\" },
    # everything else
    { tool = \"exec\", action = \"ask\" }, # think
]

[http] # after
";

const ADDED: &str = "{ tool = \"exec\", command = \"git status\", action = \"allow\" }";

#[test]
fn a_rule_stands_before_the_one_that_asked_and_comments_stay() {
    let home = Home::with_config(WRITTEN);
    let store = home.store();
    let asked = store.current().policy.rules[1].clone();
    let changes = store.add_rules(ADDED, Some(&asked)).unwrap();
    assert_eq!(changed(&changes), ["policy.rules"]);
    let want = WRITTEN.replace(
        "    # everything else\n",
        &format!("    {ADDED},\n    # everything else\n"),
    );
    assert_eq!(home.text(), want);
    assert_eq!(store.current().policy.rules.len(), 3);
    assert_eq!(store.current().policy.rules[1].to_toml(), ADDED);
}

#[test]
fn a_comment_behind_a_rule_stays_behind_it() {
    const FIRST: &str = "{ command = \"rm **\", action = \"deny\" }";
    const SECOND: &str = "{ tool = \"exec\", action = \"ask\" }";
    let with_comma = format!(
        "[policy]\nrules = [ # all\n    {FIRST}, # c1\n    # above\n    {SECOND}, # c2\n]\n"
    );
    let without = with_comma.replace("}, # c2", "} # c2");
    for written in [with_comma, without] {
        for (at, line) in [(0, "[ # all\n"), (1, "}, # c1\n"), (2, "}, # c2\n")] {
            let home = Home::with_config(&written);
            let store = home.store();
            let asked = store.current().policy.rules.get(at).cloned();
            store.add_rules(ADDED, asked.as_ref()).unwrap();
            let added = format!("{line}    {ADDED},");
            assert!(home.text().contains(&added), "{}", home.text());
            for (rule, comment) in [(FIRST, "# c1"), (SECOND, "# c2")] {
                let kept = format!("{rule}, {comment}\n");
                let last = format!("{rule} {comment}\n");
                let text = home.text();
                assert!(text.contains(&kept) || text.contains(&last), "{text}");
            }
            assert_eq!(store.current().policy.rules[at].to_toml(), ADDED);
        }
    }
}

#[test]
fn without_one_that_asked_it_stands_at_the_end() {
    for (written, before) in [
        (WRITTEN, 2),
        ("", 0),
        ("[policy]\n", 0),
        ("[policy]\nrules = []\n", 0),
        ("[[policy.rules]]\naction = \"ask\"\n# last\n", 1),
    ] {
        let home = Home::with_config(written);
        let store = home.store();
        let two = format!("{ADDED},\n{{ path = 'a\"b', action = \"deny\" }}");
        store.add_rules(&two, None).unwrap();
        let rules = &store.current().policy.rules;
        assert_eq!(rules.len(), before + 2, "{}", home.text());
        assert_eq!(rules[before].to_toml(), ADDED);
        for comment in written
            .lines()
            .filter(|line| line.trim_start().starts_with('#'))
        {
            assert!(home.text().contains(comment), "{}", home.text());
        }
    }
}

#[test]
fn a_list_of_tables_keeps_its_order() {
    let home = Home::with_config(
        "[[policy.rules]]\ncommand = \"a\"\naction = \"deny\"\n\n[[policy.rules]]\naction = \"ask\"\n\n[http]\n",
    );
    let store = home.store();
    let asked = store.current().policy.rules[1].clone();
    store.add_rules(ADDED, Some(&asked)).unwrap();
    let actions: Vec<Action> = home
        .load()
        .policy
        .rules
        .iter()
        .map(|rule| rule.action)
        .collect();
    assert_eq!(
        actions,
        [Action::Deny, Action::Allow, Action::Ask],
        "{}",
        home.text()
    );
}

#[test]
fn a_wrong_rule_changes_nothing() {
    let home = Home::with_config(WRITTEN);
    let store = home.store();
    for (text, want) in [
        ("", "policy.rules: is not a rule"),
        ("{ action = \"allow\"", "policy.rules: "),
        ("3", "a rule stands in braces"),
        ("{ tool = \"exec\" }", "policy.rules[0].action: is missing"),
        (
            "{ comand = \"x\", action = \"allow\" }",
            "did you mean policy.rules[0].command?",
        ),
        (
            "{ command = \"a | b\", action = \"allow\" }",
            "policy.rules[0].command: is the pattern",
        ),
        ("]\nx = [", "policy.rules: is not a rule"),
    ] {
        let error = store.add_rules(text, None).unwrap_err().to_string();
        assert!(error.contains(want), "{text}: {error}");
        assert_eq!(home.text(), WRITTEN);
    }
}

#[test]
fn rules_of_a_variable_are_not_changed_behind_it() {
    let home = Home::with_config("").env("QUINTET_POLICY__RULES", "[{action = \"ask\"}]");
    let error = home.store().add_rules(ADDED, None).unwrap_err().to_string();
    assert!(error.contains("QUINTET_POLICY__RULES"), "{error}");
    assert_eq!(home.text(), "");
}
