//! Types of a plane as Markdown, from their source.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use syn::{
    Attribute, BinOp, Expr, ExprLit, Fields, GenericArgument, Item, ItemEnum, ItemStruct, Lit,
    Meta, PathArguments, Type, UnOp,
};

/// How values of a type are on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// By name, as serde writes them.
    Json,
    /// By position.
    Positional,
}

/// A parsed source file.
pub(super) struct Source {
    pub(super) file: syn::File,
}

impl Source {
    pub(super) fn parse(text: &str) -> syn::Result<Self> {
        syn::parse_file(text).map(|file| Self { file })
    }

    pub(super) fn find_enum(&self, name: &str) -> Result<&ItemEnum, String> {
        let mut items = self.file.items.iter();
        let found = items.find_map(|item| match item {
            Item::Enum(item) if item.ident == name => Some(item),
            _ => None,
        });
        found.ok_or_else(|| format!("there is no enum {name}"))
    }

    /// The documentation of the file itself, its headings below the page's own.
    pub(super) fn module_docs(&self) -> String {
        let mut page = String::new();
        let mut in_code = false;
        for line in doc_lines(&self.file.attrs) {
            let line = line.strip_prefix(' ').unwrap_or(&line);
            if line.starts_with("```") {
                in_code = !in_code;
                page.push_str(line);
            } else if in_code {
                page.push_str(line);
            } else if let Some(title) = line.strip_prefix("# ") {
                let _ = writeln!(page, "**{title}**");
            } else {
                page.push_str(&plain(line));
            }
            page.push('\n');
        }
        page.push('\n');
        page
    }
}

/// The public constants of `sources` whose values are plain, as a list. A value may name a constant
/// of any of them.
pub(super) fn constants(sources: &[Source]) -> String {
    let mut all = Vec::new();
    for source in sources {
        gather(&source.file.items, &mut all);
    }
    let mut known = BTreeMap::new();
    // As often as there are constants: each round settles at least one that others wait for.
    for _ in 0..all.len() {
        for item in &all {
            if let Some(value) = number(&item.expr, &known) {
                known.insert(item.ident.to_string(), value);
            }
        }
    }
    let mut page = String::new();
    for item in all {
        if !matches!(item.vis, syn::Visibility::Public(_)) {
            continue;
        }
        let name = &item.ident;
        let value = match (&*item.expr, known.get(&name.to_string())) {
            (
                Expr::Lit(ExprLit {
                    lit: Lit::Int(literal),
                    ..
                }),
                Some(_),
            ) if literal.to_string().starts_with("0x") => literal.to_string(),
            (_, Some(value)) => value.to_string(),
            (
                Expr::Lit(ExprLit {
                    lit: Lit::Str(text),
                    ..
                }),
                None,
            ) => format!("{:?}", text.value()),
            _ => continue,
        };
        let _ = writeln!(page, "- `{name}` = {value}: {}", sentence(&item.attrs));
    }
    page.push('\n');
    page
}

fn gather<'a>(items: &'a [Item], into: &mut Vec<&'a syn::ItemConst>) {
    for item in items {
        match item {
            Item::Const(item) => into.push(item),
            Item::Mod(module) if !module.attrs.iter().any(|a| a.path().is_ident("cfg")) => {
                if let Some((_, items)) = &module.content {
                    gather(items, into);
                }
            }
            _ => {}
        }
    }
}

fn number(expr: &Expr, known: &BTreeMap<String, i128>) -> Option<i128> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Int(value),
            ..
        }) => value.base10_parse().ok(),
        Expr::Paren(inner) => number(&inner.expr, known),
        Expr::Cast(cast) => number(&cast.expr, known),
        Expr::Path(path) => known
            .get(&path.path.segments.last()?.ident.to_string())
            .copied(),
        Expr::Unary(unary) if matches!(unary.op, UnOp::Neg(_)) => {
            number(&unary.expr, known)?.checked_neg()
        }
        Expr::Binary(binary) => {
            let (left, right) = (number(&binary.left, known)?, number(&binary.right, known)?);
            match binary.op {
                BinOp::Add(_) => left.checked_add(right),
                BinOp::Sub(_) => left.checked_sub(right),
                BinOp::Mul(_) => left.checked_mul(right),
                BinOp::Div(_) => left.checked_div(right),
                BinOp::Shl(_) => left.checked_shl(u32::try_from(right).ok()?),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The types named `wanted`, in that order.
pub(super) fn types(source: &Source, form: Form, wanted: &[&str]) -> Result<String, String> {
    let mut page = String::new();
    for name in wanted {
        let found = source.file.items.iter().find_map(|item| match item {
            Item::Struct(item) if item.ident == name => Some(structure(item, form)),
            Item::Enum(item) if item.ident == name => Some(enumeration(item, form)),
            _ => None,
        });
        page.push_str(&found.unwrap_or_else(|| Err(format!("there is no type {name}")))?);
    }
    Ok(page)
}

pub(super) fn heading(name: &impl std::fmt::Display, attrs: &[Attribute]) -> String {
    format!("\n#### `{name}`\n\n{}\n\n", sentence(attrs))
}

fn structure(item: &ItemStruct, form: Form) -> Result<String, String> {
    Ok(heading(&item.ident, &item.attrs) + &fields(&item.fields, form, "") + "\n")
}

fn enumeration(item: &ItemEnum, form: Form) -> Result<String, String> {
    let mut page = heading(&item.ident, &item.attrs);
    let tag = serde_value(&item.attrs, "tag");
    let numbered = item.variants.iter().any(|v| v.discriminant.is_some());
    match (&tag, form, numbered) {
        (Some(tag), Form::Json, _) => {
            let _ = writeln!(page, "An object whose `{tag}` is one of:\n");
        }
        (None, Form::Json, false) if has_serde(&item.attrs) => {
            page.push_str("One of these texts:\n\n");
        }
        _ => {}
    }
    let snake = serde_value(&item.attrs, "rename_all").as_deref() == Some("snake_case");
    for (index, variant) in item.variants.iter().enumerate() {
        let doc = sentence(&variant.attrs);
        let name = match serde_value(&variant.attrs, "rename") {
            Some(name) => name,
            None if snake => snake_case(&variant.ident.to_string()),
            None => variant.ident.to_string(),
        };
        let known_to_serde = |word| serde_has(&variant.attrs, word);
        let label = match (form, &variant.discriminant) {
            _ if known_to_serde("skip") => continue,
            _ if known_to_serde("untagged") || known_to_serde("other") => {
                let _ = writeln!(page, "- anything else: {doc}");
                continue;
            }
            (Form::Positional, _) => {
                let said = doc.split([',', ':']).next().and_then(|n| n.parse().ok());
                if said != Some(index) {
                    return Err(format!("{name} has number {index}, its doc says {doc:?}"));
                }
                let rest = doc[said.map_or(0, |n: usize| n.to_string().len())..]
                    .trim_start_matches([',', ':', ' ']);
                let _ = writeln!(page, "- {index} `{name}`: {rest}");
                page.push_str(&fields(&variant.fields, form, "  "));
                continue;
            }
            (_, Some((_, number))) => {
                let number = self::number(number, &BTreeMap::new())
                    .ok_or_else(|| format!("{name} has a number that is not plain"))?;
                format!("{number} `{name}`")
            }
            (Form::Json, None) => format!("`{name}`"),
        };
        let _ = writeln!(page, "- {label}: {doc}");
        page.push_str(&fields(&variant.fields, form, "  "));
    }
    page.push('\n');
    Ok(page)
}

fn fields(fields: &Fields, form: Form, indent: &str) -> String {
    let mut page = String::new();
    for field in fields {
        let optional = has_default(&field.attrs) && form == Form::Json;
        let kind = described(&field.ty, form);
        let kind = match optional && !kind.ends_with("or absent") {
            true => or_absent(&kind),
            false => kind,
        };
        let _ = match &field.ident {
            Some(_) if serde_has(&field.attrs, "flatten") => {
                writeln!(
                    page,
                    "{indent}- the fields of {kind}: {}",
                    sentence(&field.attrs)
                )
            }
            Some(name) => writeln!(
                page,
                "{indent}- `{name}`, {kind}: {}",
                sentence(&field.attrs)
            ),
            None => writeln!(page, "{indent}- the fields of {kind}"),
        };
    }
    page
}

/// A type in words, or for a positional encoding in its own.
pub(super) fn described(ty: &Type, form: Form) -> String {
    match form {
        Form::Positional => format!("`{}`", written(ty)),
        Form::Json => in_words(ty),
    }
}

fn in_words(ty: &Type) -> String {
    let Type::Path(path) = ty else {
        return match ty {
            Type::Reference(reference) => in_words(&reference.elem),
            Type::Tuple(tuple) => {
                let parts: Vec<String> = tuple.elems.iter().map(in_words).collect();
                format!("[{}]", parts.join(", "))
            }
            _ => format!("`{}`", written(ty)),
        };
    };
    let Some(last) = path.path.segments.last() else {
        return written(ty);
    };
    let inner: Vec<&Type> = arguments(&last.arguments);
    let name = last.ident.to_string();
    match (name.as_str(), inner.as_slice()) {
        ("Option", [inner]) => or_absent(&in_words(inner)),
        ("Vec", [inner]) => format!("list of {}", in_words(inner)),
        ("Box" | "Arc" | "Cow", [inner]) => in_words(inner),
        ("BTreeMap", [_, value]) => format!("object of {}", in_words(value)),
        ("Map", _) => "object".to_owned(),
        ("Value", _) => "any JSON".to_owned(),
        ("String" | "str" | "MessageId" | "AgentId", _) => "text".to_owned(),
        ("Decimal", _) => "decimal as text".to_owned(),
        ("Bytes", _) => "bytes".to_owned(),
        ("bool", _) => "true or false".to_owned(),
        (name, _) if name.starts_with(char::is_lowercase) => name.to_owned(),
        (name, _) => format!("`{name}`"),
    }
}

fn or_absent(kind: &str) -> String {
    match kind {
        "true or false" => "true, false or absent".to_owned(),
        kind => format!("{kind} or absent"),
    }
}

fn written(ty: &Type) -> String {
    match ty {
        Type::Path(path) => {
            let Some(last) = path.path.segments.last() else {
                return String::new();
            };
            let inner: Vec<String> = arguments(&last.arguments)
                .into_iter()
                .map(written)
                .collect();
            match inner.is_empty() {
                true => last.ident.to_string(),
                false => format!("{}<{}>", last.ident, inner.join(", ")),
            }
        }
        Type::Tuple(tuple) => {
            let parts: Vec<String> = tuple.elems.iter().map(written).collect();
            format!("({})", parts.join(", "))
        }
        Type::Reference(reference) => written(&reference.elem),
        Type::Array(array) => format!("[{}]", written(&array.elem)),
        Type::Slice(slice) => format!("[{}]", written(&slice.elem)),
        _ => "?".to_owned(),
    }
}

fn arguments(arguments: &PathArguments) -> Vec<&Type> {
    let PathArguments::AngleBracketed(list) = arguments else {
        return Vec::new();
    };
    let types = list.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

fn doc_lines(attrs: &[Attribute]) -> Vec<String> {
    let lines = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    lines.collect()
}

/// The documentation of an item in one line.
pub(super) fn sentence(attrs: &[Attribute]) -> String {
    let lines = doc_lines(attrs);
    let words: Vec<&str> = lines
        .iter()
        .map(|line| line.trim())
        .filter(|line| !line.is_empty())
        .collect();
    plain(&words.join(" "))
}

/// A line without rustdoc's links: [`X`] and [`X`](path) become `X`.
fn plain(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("[`") {
        let (before, link) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = link.find("`]") else {
            rest = link;
            break;
        };
        out.push_str(link.get(1..=end).unwrap_or_default());
        rest = link.get(end + 2..).unwrap_or_default();
        if rest.starts_with('(')
            && let Some(close) = rest.find(')')
        {
            rest = rest.get(close + 1..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

fn has_serde(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident("serde"))
}

/// The words of `#[serde(..)]`, each with its value where it has one.
fn serde_words(attrs: &[Attribute]) -> Vec<(String, Option<String>)> {
    let mut words = Vec::new();
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
        // What is not understood here is serde's to refuse, in the build.
        let _ = attr.parse_nested_meta(|meta| {
            let name = meta.path.get_ident().map(ToString::to_string);
            let value = match meta.value() {
                Ok(value) => Some(value.parse::<syn::LitStr>()?.value()),
                Err(_) => None,
            };
            words.extend(name.map(|name| (name, value)));
            Ok(())
        });
    }
    words
}

fn serde_value(attrs: &[Attribute], name: &str) -> Option<String> {
    let mut words = serde_words(attrs).into_iter();
    words.find_map(|(word, value)| (word == name).then_some(value)?)
}

fn serde_has(attrs: &[Attribute], name: &str) -> bool {
    serde_words(attrs).iter().any(|(word, _)| word == name)
}

fn has_default(attrs: &[Attribute]) -> bool {
    serde_has(attrs, "default") || serde_has(attrs, "skip_serializing_if")
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"
//! What a [`Peer`] says.
//!
//! # Flow
//! ```text
//! [`not a link`]
//! ```

/// The most, see [`Peer`](crate::Peer).
pub const MOST: u32 = 2 * 1024;
/// One more.
pub const MORE: usize = MOST as usize + 1;
/// A name.
pub const NAME: &str = "peer.v1";
const HIDDEN: u8 = 1;
pub mod kinds {
    /// It begins.
    pub const START: u8 = 0x7f;
}

/// What is said.
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Said {
    /// First.
    HelloThere {
        /// Who.
        name: Cow<'a, str>,
        /// Perhaps.
        #[serde(default)]
        labels: BTreeMap<String, String>,
        /// Or not.
        age: Option<u64>,
    },
    /// More.
    Rest(Box<Rest>),
    /// Kept.
    #[serde(untagged)]
    Other(String),
    /// Never said.
    #[serde(skip)]
    Never,
}

/// By place.
pub enum Placed {
    /// 0, to there: the first.
    One {
        /// Pairs.
        pairs: Vec<(u64, String)>,
    },
    /// 1: the second.
    Two,
}

/// By number.
#[repr(u8)]
pub enum Numbered {
    /// A.
    A = 3,
}
"#;

    fn source() -> Source {
        Source::parse(SOURCE).expect("it is Rust")
    }

    #[test]
    fn module_docs_lose_their_links_and_keep_their_code() {
        assert_eq!(
            source().module_docs(),
            "What a `Peer` says.\n\n**Flow**\n\n```text\n[`not a link`]\n```\n\n"
        );
    }

    #[test]
    fn constants_are_evaluated() {
        assert_eq!(
            constants(&[source()]),
            "- `MOST` = 2048: The most, see `Peer`.\n- `MORE` = 2049: One more.\n\
             - `NAME` = \"peer.v1\": A name.\n- `START` = 0x7f: It begins.\n\n"
        );
    }

    #[test]
    fn names_are_those_of_serde() {
        assert_eq!(
            types(&source(), Form::Json, &["Said", "Numbered"]).as_deref(),
            Ok("
#### `Said`

What is said.

An object whose `type` is one of:

- `hello_there`: First.
  - `name`, text: Who.
  - `labels`, object of text or absent: Perhaps.
  - `age`, u64 or absent: Or not.
- `rest`: More.
  - the fields of `Rest`
- anything else: Kept.


#### `Numbered`

By number.

- 3 `A`: A.

")
        );
    }

    #[test]
    fn places_are_counted_and_a_doc_that_says_another_number_is_refused() {
        assert_eq!(
            types(&source(), Form::Positional, &["Placed"]).as_deref(),
            Ok("
#### `Placed`

By place.

- 0 `One`: to there: the first.
  - `pairs`, `Vec<(u64, String)>`: Pairs.
- 1 `Two`: the second.

")
        );
        let moved = Source::parse(&SOURCE.replace("/// 1: the", "/// 2: the")).expect("it is Rust");
        assert!(types(&moved, Form::Positional, &["Placed"]).is_err());
    }

    #[test]
    fn a_type_that_is_gone_is_named() {
        let missing = types(&source(), Form::Json, &["Gone"]);
        assert_eq!(missing, Err("there is no type Gone".to_owned()));
    }
}
