//! `agents/NAME.md` and `skills/NAME/SKILL.md`.

use super::*;

#[test]
fn an_agent_file_shares_the_program_of_another_agent() {
    let home = Home::with_config(
        "[agents.base]\ncommand = [\"prog\"]\nkind = \"acp\"\ncwd = \"/srv\"\n\
         env = { A = \"1\", B = \"2\" }\nidle_timeout = \"1m\"\n\
         [agents.reviewer]\nenv = { B = \"3\" }\n",
    );
    home.write(
        "agents/reviewer.md",
        "---\ndescription: Reads diffs # and more\nagent: base\nmodel: \"big\"\nidle_timeout: 5m\n---\n\nYou review.\n\nBe kind.\n",
    );
    home.write(
        "agents/other.md",
        "+++\nname = \"writer\"\nprogram = \"reviewer\"\n+++\nYou write.\n",
    );
    home.write("agents/notes.txt", "not an agent");
    let config = home.load();
    assert_eq!(
        config.agents.keys().collect::<Vec<_>>(),
        ["base", "coder", "reviewer", "shell", "writer"]
    );
    let reviewer = &config.agents["reviewer"];
    assert_eq!(
        reviewer.program,
        AgentProgram::Command(vec!["prog".to_owned()])
    );
    assert_eq!(reviewer.kind, AgentKind::Acp);
    assert_eq!(reviewer.cwd, Some("/srv".into()));
    assert_eq!(reviewer.description, "Reads diffs");
    assert_eq!(reviewer.model.as_deref(), Some("big"));
    assert_eq!(reviewer.prompt, "You review.\n\nBe kind.");
    assert_eq!(reviewer.idle_timeout, std::time::Duration::from_secs(300));
    assert_eq!(
        reviewer.env,
        [
            ("A".to_owned(), Secret::from("1")),
            ("B".to_owned(), Secret::from("3"))
        ]
        .into()
    );
    assert_eq!(config.agents["writer"].program, reviewer.program);
    assert_eq!(config.agents["writer"].prompt, "You write.");
}

#[test]
fn the_file_is_stronger_than_an_agent_file() {
    let home = Home::with_config("[agents.x]\nmodel = \"from config\"\n");
    home.write(
        "agents/x.md",
        "---\nagent: coder\nmodel: from head\n---\nHi\n",
    );
    let config = home.load();
    assert_eq!(config.agents["x"].model.as_deref(), Some("from config"));
    assert_eq!(config.agents["x"].prompt, "Hi");
}

#[test]
fn two_agent_files_of_one_name_are_a_mistake() {
    let home = Home::new();
    home.write("agents/a.md", "---\nname: x\nagent: coder\n---\nA\n");
    home.write("agents/x.md", "---\nagent: coder\n---\nX\n");
    let errors = home.errors();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].key, key("agents.x"));
    assert!(matches!(errors[0].kind, ProblemKind::Invalid { .. }));
}

#[test]
fn mistakes_in_agent_files_have_their_lines() {
    let table = [
        (
            "---\nagent: coder\n",
            "agents/x.md:1: the head starts with --- and does not end with another ---",
        ),
        (
            "---\nagent: coder\nwhat is this\n---\nHi",
            "agents/x.md:3: expected a line such as \"description: what it does\"",
        ),
        (
            "---\nagent: coder\nmodel: \"open\n---\nHi",
            "agents/x.md:3: model: a quote is not closed",
        ),
        (
            "+++\nprogram = \"coder\"\nmodle = \"m\"\n+++\nHi",
            "agents/x.md:3: agents.x.modle: unknown key, did you mean agents.x.model?",
        ),
        (
            "---\nagent: nobody\n---\nHi",
            "agents/x.md:2: agents.x.program: there is no agent \"nobody\"",
        ),
        (
            "Just text",
            "agents/x.md:1: agents.x.command: is missing: an agent has a command = [\"PROGRAM\", ...], or a program = \"AGENT\" whose program it shares",
        ),
    ];
    for (text, expected) in table {
        let home = Home::new();
        home.write("agents/x.md", text);
        assert_eq!(home.complaints(), [expected], "{text}");
    }
}

#[test]
fn skills_are_read_with_both_heads() {
    let home = Home::new();
    home.write(
        "skills/daily/SKILL.md",
        "---\nname: daily\ndescription: >-\n  Says what\n  happened today.\nlicense: MIT\nmetadata:\n  author: me\n---\n\n# Daily\n\nLook at the log.\n",
    );
    home.write(
        "skills/other/SKILL.md",
        "+++\ndescription = \"Another\"\n+++\nDo it.\n",
    );
    home.write(
        "skills/literal/SKILL.md",
        "---\ndescription: |\n  a\n    b\n---\nX\n",
    );
    home.write(
        "skills/quoted/SKILL.md",
        "---\ndescription: 'it''s: fine'\n---\nX\n",
    );
    home.write("skills/empty/README.md", "no skill here");
    let loaded = load_skills(&home.path("skills"));
    assert_eq!(loaded.problems, []);
    assert_eq!(
        loaded.skills["daily"],
        Skill {
            name: "daily".to_owned(),
            description: "Says what happened today.".to_owned(),
            body: "# Daily\n\nLook at the log.".to_owned(),
        }
    );
    assert_eq!(loaded.skills["other"].body, "Do it.");
    assert_eq!(loaded.skills["literal"].description, "a\n  b");
    assert_eq!(loaded.skills["quoted"].description, "it's: fine");
    assert_eq!(loaded.skills.len(), 4);
}

#[test]
fn a_broken_skill_does_not_hide_a_good_one() {
    let home = Home::new();
    home.write("skills/good/SKILL.md", "---\ndescription: d\n---\nX\n");
    home.write("skills/a-none/SKILL.md", "---\nname: n\n---\nX\n");
    home.write("skills/b-open/SKILL.md", "---\nname: n\n");
    home.write("skills/c-bare/SKILL.md", "---\ndescription: d\n---\n");
    home.write(
        "skills/z-twin/SKILL.md",
        "---\nname: good\ndescription: d\n---\nX\n",
    );
    let loaded = load_skills(&home.path("skills"));
    assert_eq!(loaded.skills.keys().collect::<Vec<_>>(), ["good"]);
    assert_eq!(loaded.problems.len(), 4);
    assert!(matches!(
        loaded.problems[0].kind,
        ProblemKind::Missing { .. }
    ));
    assert!(matches!(
        loaded.problems[1].kind,
        ProblemKind::Syntax { .. }
    ));
    assert_eq!(load_skills(&home.path("nowhere")), Skills::default());
}
