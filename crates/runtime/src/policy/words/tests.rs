use super::*;

fn read(line: &str) -> Result<Vec<Simple>, Unreadable> {
    read_nested(line, 0)
}

fn commands(line: &str) -> Vec<String> {
    let shown = |word: &Word| word.exact().unwrap_or_else(|| format!("<{}>", word.raw));
    read(line)
        .unwrap()
        .iter()
        .map(|command| {
            command
                .words
                .iter()
                .map(shown)
                .collect::<Vec<_>>()
                .join(" ")
        })
        .collect()
}

#[test]
fn lines_are_read_into_their_commands() {
    for (line, want) in [
        ("", vec![]),
        ("ls -l", vec!["ls -l"]),
        (r#"g"i"t 'pu'sh \-f"#, vec!["git push -f"]),
        ("a | b && c || d; e & f", vec!["a", "b", "c", "d", "e", "f"]),
        ("a |& b\nc", vec!["a", "b", "c"]),
        ("(a; b) && { c; }", vec!["a", "b", "c"]),
        (
            "echo $(rm x) `rm y`",
            vec!["rm x", "rm y", "echo <$(rm x)> <`rm y`>"],
        ),
        (
            r#"echo "$(rm "a b")""#,
            vec!["rm a b", r#"echo <"$(rm "a b")">"#],
        ),
        ("echo $((1 + 2 * (x)))", vec!["echo <$((1 + 2 * (x)))>"]),
        (
            "echo $((rm x); (rm y))",
            vec!["rm x", "rm y", "echo <$((rm x); (rm y))>"],
        ),
        ("echo ${x:-$(rm y)}", vec!["rm y", "echo <${x:-$(rm y)}>"]),
        ("diff <(a) <(b)", vec!["a", "b", "diff <<(a)> <<(b)>"]),
        ("if a; then b; else c; fi", vec!["a", "b", "c"]),
        // The variable is set by a command without words.
        ("for x in 1 2; do rm $x; done", vec!["", "rm <$x>"]),
        ("while ! a; do b; done", vec!["a", "b"]),
        ("X=1 Y='a b' env Z=2 cmd", vec!["env Z=2 cmd"]),
        ("echo hi > out 2>&1 # rm -rf /", vec!["echo hi"]),
        (
            "cat <<EOF\n$(rm x)\nrm y\nEOF\nls",
            vec!["cat", "rm x", "ls"],
        ),
        ("cat <<'EOF'\n$(rm x)\nEOF\nls", vec!["cat", "ls"]),
        ("cat <<-E; b\n\tx\n\tE\nc", vec!["cat", "b", "c"]),
        ("a \\\n b", vec!["a b"]),
        ("echo a#b", vec!["echo a#b"]),
        ("[ -f x ] && a", vec!["[ -f x ]", "a"]),
        ("echo '' \"\"", vec!["echo  "]),
        (
            "ls *.rs {a,b} x{} [ab]",
            vec!["ls <*.rs> <{a,b}> x{} <[ab]>"],
        ),
        ("echo $'a\\\\b' $", vec!["echo <$'a\\\\b'> $"]),
        ("echo a\r# b", vec!["echo a\r# b"]),
        ("th\\\nen x; if a; th\\\nen b; fi", vec!["x", "a", "b"]),
        ("{fd}>out a[0]=1 rm x", vec!["rm x"]),
        (
            "time -p rm x; time -f %s rm y",
            vec!["rm x", "time -f %s rm y"],
        ),
        (
            "cat <<A $(b <<B\nB\nc\n)\nA\nd",
            vec!["b", "c", "cat <$(b <<B\nB\nc\n)>", "d"],
        ),
        ("2>err cmd", vec!["cmd"]),
    ] {
        assert_eq!(commands(line), want, "{line}");
    }
}

#[test]
fn what_is_not_read_is_an_error() {
    for (line, want) in [
        ("echo 'a", Unreadable::Quote),
        ("echo \"a", Unreadable::Quote),
        ("echo `a", Unreadable::Quote),
        ("echo $(a", Unreadable::Bracket),
        ("(a", Unreadable::Bracket),
        ("a)", Unreadable::Bracket),
        ("echo ${a", Unreadable::Bracket),
        ("a >", Unreadable::Redirection),
        ("a > ;", Unreadable::Redirection),
        ("case x in y) z;; esac", Unreadable::Construct("`case`")),
        (
            "f() { rm x; }",
            Unreadable::Construct("a function or an array"),
        ),
        ("function f { rm x; }", Unreadable::Construct("a function")),
        ("a=(1 2)", Unreadable::Construct("a function or an array")),
        ("a\0b", Unreadable::Construct("a zero byte")),
        (
            "for x do a; done",
            Unreadable::Construct("`for` without `in`"),
        ),
        ("a &> b c", Unreadable::Construct("a word behind `&>`")),
        ("((a # b\n))", Unreadable::Construct("a `#` inside `((`")),
        ("((a << 2))", Unreadable::Construct("a `<<` inside `((`")),
        (
            "\"${x:-'}\"",
            Unreadable::Construct("a quote inside `\"${`"),
        ),
        ("$'a\\''", Unreadable::Construct("a quote inside `$'`")),
        (
            "cat <<E\nE\\\n\nE\\\nE\n",
            Unreadable::Construct("a line that goes on at the end of a here-document"),
        ),
    ] {
        assert_eq!(read(line), Err(want), "{line}");
    }
    assert_eq!(read(&"(".repeat(100)), Err(Unreadable::TooDeep));
    assert_eq!(read(&"x".repeat(MAX_LINE + 1)), Err(Unreadable::TooLong));
}

#[test]
fn redirections_name_their_targets() {
    let command = &read("a <in >out 2>>log &>both 3<>rw >&file 2>&1 <&-").unwrap()[0];
    let targets: Vec<(Access, &str)> = command
        .redirects
        .iter()
        .map(|(access, word)| (*access, word.raw.as_str()))
        .collect();
    assert_eq!(
        targets,
        [
            (Access::Read, "in"),
            (Access::Write, "out"),
            (Access::Write, "log"),
            (Access::Write, "both"),
            (Access::Write, "rw"),
            (Access::Write, "file"),
        ]
    );
}

#[test]
fn a_quoted_word_is_read_back() {
    for text in ["a", "", "a b", "it's", "*", "$x", "...", "a\nb", "`x`", "~"] {
        let line = format!("echo {}", quoted(text));
        let words = &read(&line).unwrap()[0].words;
        assert_eq!(words[1].exact().as_deref(), Some(text), "{line}");
    }
}
