//! Names on the wire that are in code rather than in attributes: encoders, and matches on names.

use std::fmt::Write as _;

use syn::{
    Arm, Block, Expr, ExprLit, ExprMatch, Fields, Item, ItemFn, Lit, Local, Pat, Stmt, Variant,
};

use super::rust::{Form, Source, described, heading, sentence};

/// The function that encodes a type: a match with an arm a variant.
#[derive(Debug, Clone, Copy)]
pub(super) enum Encoder {
    /// A method of the type.
    Method(&'static str),
    /// A function of the encoder's file.
    Function(&'static str),
}

/// What an encoder writes for one message.
#[derive(Debug, Default)]
struct Wire {
    /// One `type`, or one a dialect.
    kinds: Vec<String>,
    fields: Vec<Field>,
    /// Another encoder does it.
    delegate: Option<String>,
}

impl Wire {
    /// What another arm of the same variant writes as well.
    fn add(&mut self, other: Self) {
        self.kinds = other.kinds;
        self.delegate = other.delegate;
        for field in other.fields {
            if !self.fields.iter().any(|known| known.names == field.names) {
                self.fields.push(field);
            }
        }
    }
}

#[derive(Debug)]
struct Field {
    /// One name, or one a dialect.
    names: Vec<String>,
    base64: bool,
}

/// The messages of the enum `name`, with the names that its encoder writes.
pub(super) fn encoded(
    types: &Source,
    encoder: &Source,
    name: &str,
    how: Encoder,
) -> Result<String, String> {
    let item = types.find_enum(name)?;
    let body = match how {
        Encoder::Method(method) => body_of_method(encoder, name, method)?,
        Encoder::Function(function) => &function_named(encoder, function)?.block,
    };
    let arms = first_match(body).ok_or_else(|| format!("the encoder of {name} has no match"))?;
    let mut page = heading(&item.ident, &item.attrs);
    for variant in &item.variants {
        let mut wire = Wire::default();
        // A variant may have several arms: what is left out where it is absent is in one of them.
        for arm in arms.arms.iter().filter(|arm| is_of(&arm.pat, variant)) {
            let mut one = Wire::default();
            walk(types, &arm.body, &mut one)?;
            wire.add(one);
        }
        if wire.kinds.is_empty() && wire.delegate.is_none() {
            return Err(format!("{name}::{} is not encoded", variant.ident));
        }
        if let Some(function) = wire.delegate.take() {
            let block = &function_named(encoder, &function)?.block;
            // An encoder with a match of its own is listed by itself.
            if wire_of_block(types, block, &mut wire)? {
                let _ = writeln!(
                    page,
                    "- the messages about it, below: {}",
                    sentence(&variant.attrs)
                );
                continue;
            }
        }
        let _ = writeln!(
            page,
            "- {}: {}",
            either(&wire.kinds),
            sentence(&variant.attrs)
        );
        for field in &wire.fields {
            page.push_str(&field_line(variant, field));
        }
    }
    page.push('\n');
    Ok(page)
}

fn field_line(variant: &Variant, field: &Field) -> String {
    let Fields::Named(declared) = &variant.fields else {
        return format!("  - {}\n", either(&field.names));
    };
    let same = declared.named.iter().find(|declared| {
        declared.ident.as_ref().is_some_and(|ident| {
            field.names.iter().any(|name| ident == name)
                || (ident == "id" && field.names[0].ends_with("_id"))
        })
    });
    let Some(declared) = same else {
        return format!("  - {}\n", either(&field.names));
    };
    let kind = match field.base64 {
        true => "base64".to_owned(),
        false => described(&declared.ty, Form::Json),
    };
    format!(
        "  - {}, {kind}: {}\n",
        either(&field.names),
        sentence(&declared.attrs)
    )
}

/// The enum `name`, each variant under the text that `function` gives it.
pub(super) fn named(source: &Source, name: &str, function: &str) -> Result<String, String> {
    let item = source.find_enum(name)?;
    let texts = texts(source, name, function)?;
    let mut page = heading(&item.ident, &item.attrs);
    for variant in &item.variants {
        let text = texts.iter().find(|(of, _)| variant.ident == of.as_str());
        let (_, text) = text.ok_or_else(|| format!("{name}::{} has no text", variant.ident))?;
        let _ = writeln!(page, "- `{text}`: {}", sentence(&variant.attrs));
    }
    page.push('\n');
    Ok(page)
}

/// The texts that the first match of `function` tells apart.
pub(super) fn requests(source: &Source, function: &str) -> Result<Vec<String>, String> {
    let body = &function_named(source, function)?.block;
    let arms = first_match(body).ok_or_else(|| format!("{function} has no match"))?;
    let names: Vec<String> = arms
        .arms
        .iter()
        .filter_map(|arm| match &arm.pat {
            Pat::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) => Some(text.value()),
            _ => None,
        })
        .collect();
    match names.is_empty() {
        true => Err(format!("{function} tells no names apart")),
        false => Ok(names),
    }
}

/// Variant and text of each arm of a method that matches on `self`.
fn texts(source: &Source, name: &str, method: &str) -> Result<Vec<(String, String)>, String> {
    let body = body_of_method(source, name, method)?;
    let arms = first_match(body).ok_or_else(|| format!("{name}::{method} has no match"))?;
    let pairs = arms
        .arms
        .iter()
        .filter_map(|arm| Some((variant_of(&arm.pat)?, text(&arm.body)?)));
    Ok(pairs.collect())
}

fn body_of_method<'a>(source: &'a Source, name: &str, method: &str) -> Result<&'a Block, String> {
    let methods = source.file.items.iter().filter_map(|item| match item {
        Item::Impl(item) if item.trait_.is_none() => Some(item),
        _ => None,
    });
    let found = methods
        .filter(|item| matches!(&*item.self_ty, syn::Type::Path(path) if path.path.is_ident(name)))
        .flat_map(|item| &item.items)
        .find_map(|item| match item {
            syn::ImplItem::Fn(function) if function.sig.ident == method => Some(&function.block),
            _ => None,
        });
    found.ok_or_else(|| format!("{name} has no method {method}"))
}

fn function_named<'a>(source: &'a Source, name: &str) -> Result<&'a ItemFn, String> {
    let found = source.file.items.iter().find_map(|item| match item {
        Item::Fn(function) if function.sig.ident == name => Some(function),
        _ => None,
    });
    found.ok_or_else(|| format!("there is no function {name}"))
}

/// The match that a function's body ends with.
fn first_match(block: &Block) -> Option<&ExprMatch> {
    block
        .stmts
        .iter()
        .rev()
        .find_map(|statement| match statement {
            Stmt::Expr(Expr::Match(found), _) => Some(found),
            _ => None,
        })
}

fn variant_of(pattern: &Pat) -> Option<String> {
    let path = match pattern {
        Pat::Struct(pattern) => &pattern.path,
        Pat::TupleStruct(pattern) => &pattern.path,
        Pat::Path(pattern) => &pattern.path,
        _ => return None,
    };
    Some(path.segments.last()?.ident.to_string())
}

fn is_of(pattern: &Pat, variant: &Variant) -> bool {
    variant_of(pattern).is_some_and(|name| variant.ident == name)
}

/// Walks a whole body; true when it has an arm a variant, and so is an encoder of its own.
fn wire_of_block(types: &Source, block: &Block, wire: &mut Wire) -> Result<bool, String> {
    for statement in &block.stmts {
        match statement {
            Stmt::Local(Local {
                init: Some(init), ..
            }) => walk(types, &init.expr, wire)?,
            Stmt::Expr(Expr::Match(found), _) => {
                let is_of_variants = |arm: &Arm| matches!(&arm.pat, Pat::Struct(_));
                return Ok(found.arms.iter().any(is_of_variants));
            }
            Stmt::Expr(expr, _) => walk(types, expr, wire)?,
            _ => {}
        }
    }
    Ok(false)
}

/// Collects what a chain of calls on an `Object` writes, in the order in which it is written.
fn walk(types: &Source, expr: &Expr, wire: &mut Wire) -> Result<(), String> {
    match expr {
        Expr::Block(block) => {
            if let Some(Stmt::Expr(last, _)) = block.block.stmts.last() {
                walk(types, last, wire)?;
            }
        }
        Expr::MethodCall(call) => {
            walk(types, &call.receiver, wire)?;
            let method = call.method.to_string();
            match (method.as_str(), call.args.len()) {
                ("field" | "base64", 2) => wire.fields.push(Field {
                    names: kinds(&call.args[0]).ok_or("a field's name is not a text")?,
                    base64: method == "base64",
                }),
                ("id", 3) => {
                    walk(types, &call.args[0], wire)?;
                    wire.fields.push(id_field(types, &call.args[1])?);
                }
                _ => {}
            }
        }
        Expr::Call(call) => {
            let Expr::Path(path) = &*call.func else {
                return Ok(());
            };
            let function = path
                .path
                .segments
                .last()
                .map(|s| s.ident.to_string())
                .unwrap_or_default();
            match function.as_str() {
                "new" | "carrying" => {
                    wire.kinds = kinds(&call.args[0]).ok_or("a message's type is not a text")?;
                }
                "start" => {
                    wire.kinds = kinds(&call.args[0]).ok_or("a message's type is not a text")?;
                    wire.fields.push(Field {
                        names: vec!["request_id".to_owned()],
                        base64: false,
                    });
                }
                other if other.starts_with("encode_") => wire.delegate = Some(function),
                _ => {}
            }
        }
        _ => {}
    }
    Ok(())
}

/// `IdKey::Command` is the seed's name, with the released programs' beside it.
fn id_field(types: &Source, key: &Expr) -> Result<Field, String> {
    let Expr::Path(path) = key else {
        return Err("an id's key is not a path".to_owned());
    };
    let variant = path
        .path
        .segments
        .last()
        .map(|s| s.ident.to_string())
        .unwrap_or_default();
    let known = texts(types, "IdKey", "name")?;
    let text = |variant: &str| {
        let found = known.iter().find(|(of, _)| of == variant);
        found
            .map(|(_, text)| text.clone())
            .ok_or_else(|| format!("IdKey::{variant} has no name"))
    };
    Ok(Field {
        names: vec![text(&variant)?, text("Request")?],
        base64: false,
    })
}

/// A text, or the two of a call that picks one by dialect.
fn kinds(expr: &Expr) -> Option<Vec<String>> {
    match expr {
        Expr::Call(call) => call.args.iter().map(text).collect(),
        expr => Some(vec![text(expr)?]),
    }
}

fn text(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

fn either(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: &str = r#"
pub enum IdKey { Command, Request }
impl IdKey {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command_id",
            Self::Request => "request_id",
        }
    }
}
/// What is sent.
pub enum Sent {
    /// Run it.
    Run {
        /// Whose.
        id: String,
        /// What.
        line: String,
    },
    /// Typed.
    Typed {
        /// Where.
        id: String,
        /// The bytes.
        data: Bytes,
    },
    /// Still here.
    Beat {
        /// How busy.
        load: Option<u8>,
    },
    /// Wrong.
    Error(Wrong),
}
"#;

    const ENCODER: &str = r#"
impl Sent {
    fn encode(&self) -> Bytes {
        let shell = |a, b| a;
        match self {
            Self::Run { id, line } => names
                .id(Object::new("run"), IdKey::Command, id)
                .field("line", line)
                .finish(),
            Self::Typed { id, data } => {
                Object::carrying(shell("input", "session_input"), data.len())
                    .field("session_id", id)
                    .base64("data", data)
                    .finish()
            }
            Self::Beat { load: None } => Object::new("beat").finish(),
            Self::Beat { load } => Object::new("beat").field("load", load).finish(),
            Self::Error(error) => encode_error(error),
        }
    }
}
fn encode_error(error: &Wrong) -> Bytes {
    let object = Object::new("error").field("message", &error.message);
    object.finish()
}
async fn serve(request: Request) -> Answer {
    let given = &request.args;
    match request.op.as_str() {
        "a.b" => one(given).await,
        op => two(op),
    }
}
"#;

    fn parsed(text: &str) -> Source {
        Source::parse(text).expect("it is Rust")
    }

    #[test]
    fn names_of_both_dialects_come_from_the_encoder() {
        let page = encoded(
            &parsed(TYPES),
            &parsed(ENCODER),
            "Sent",
            Encoder::Method("encode"),
        );
        assert_eq!(
            page.as_deref(),
            Ok("
#### `Sent`

What is sent.

- `run`: Run it.
  - `command_id` or `request_id`, text: Whose.
  - `line`, text: What.
- `input` or `session_input`: Typed.
  - `session_id`, text: Where.
  - `data`, base64: The bytes.
- `beat`: Still here.
  - `load`, u8 or absent: How busy.
- `error`: Wrong.
  - `message`

")
        );
    }

    #[test]
    fn a_message_without_an_encoder_is_named() {
        let types = TYPES.replace("/// Run it.", "/// New.\n New,\n /// Run it.");
        let page = encoded(
            &parsed(&types),
            &parsed(ENCODER),
            "Sent",
            Encoder::Method("encode"),
        );
        assert_eq!(page, Err("Sent::New is not encoded".to_owned()));
    }

    #[test]
    fn requests_are_the_names_that_are_told_apart() {
        assert_eq!(
            requests(&parsed(ENCODER), "serve"),
            Ok(vec!["a.b".to_owned()])
        );
        assert!(requests(&parsed(ENCODER), "encode_error").is_err());
    }
}
