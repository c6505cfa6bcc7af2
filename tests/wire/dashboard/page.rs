//! A page as a browser reads it.

use html5ever::parse_document;
use html5ever::tendril::TendrilSink;
use markup5ever_rcdom::{Handle, NodeData, RcDom};

use crate::support::client::Response;

/// A parsed page. Plain values, since the parser's tree cannot be held across an await.
#[derive(Debug)]
pub struct Page {
    pub answer: Response,
    pub elements: Vec<Element>,
    /// The text of `main`, with blanks collapsed.
    pub main: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    pub name: String,
    pub attributes: Vec<(String, String)>,
    /// Its text.
    pub text: String,
}

impl Element {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(of, _)| of == name).map(|(_, value)| &**value)
    }
}

impl Page {
    pub fn of(answer: Response) -> Page {
        let dom = parse_document(RcDom::default(), Default::default()).one(&*answer.text);
        let mut elements = Vec::new();
        read(&dom.document, &mut elements);
        let main = elements.iter().find(|element| element.name == "main").map(|main| main.text.clone());
        Page { answer, elements, main: main.unwrap_or_default() }
    }

    /// Panics if the status differs.
    #[track_caller]
    pub fn expect(self, status: u16) -> Page {
        assert_eq!(self.answer.status, status, "{}", self.main);
        self
    }

    /// Panics if the page does not contain this text.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Page {
        assert!(self.main.contains(text), "{text:?} should be in: {}", self.main);
        self
    }

    #[track_caller]
    pub fn says_not(&self, text: &str) -> &Page {
        assert!(!self.main.contains(text), "{text:?} should not be in: {}", self.main);
        self
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.elements.iter().filter(move |element| element.name == name)
    }

    /// Returns the target of the link with this text.
    #[track_caller]
    pub fn link(&self, text: &str) -> String {
        let link = self.all("a").find(|link| link.text.trim() == text);
        let link = link.unwrap_or_else(|| panic!("no link {text:?} in: {}", self.main));
        link.get("href").unwrap_or_default().to_owned()
    }

    /// Whether there is a button with this text.
    pub fn has_button(&self, text: &str) -> bool {
        self.all("button").any(|button| button.text.trim() == text)
    }

    /// Returns the value of the first field with this name.
    #[track_caller]
    pub fn field(&self, name: &str) -> String {
        let main = self.elements.iter().position(|element| element.name == "main").unwrap_or_default();
        let field = self.elements[main..].iter().find(|element| {
            ["input", "textarea"].contains(&&*element.name) && element.get("name") == Some(name)
        });
        let field = field.unwrap_or_else(|| panic!("no field {name:?} in: {}", self.main));
        field.get("value").map_or_else(|| field.text.clone(), str::to_owned)
    }

    pub fn header(&self, name: &str) -> &str {
        self.answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// Appends all elements below a node, in order. Returns their text.
fn read(node: &Handle, elements: &mut Vec<Element>) -> String {
    let at = elements.len();
    let is_element = match &node.data {
        NodeData::Element { name, attrs, .. } => {
            let attributes = attrs.borrow();
            let attributes = attributes.iter().map(|of| (of.name.local.to_string(), of.value.to_string()));
            let attributes = attributes.collect();
            elements.push(Element { name: name.local.to_string(), attributes, text: String::new() });
            true
        }
        NodeData::Text { contents } => return contents.borrow().to_string(),
        _ => false,
    };
    let text: String = node.children.borrow().iter().map(|child| read(child, elements)).collect();
    if is_element {
        let blank = !["pre", "code", "textarea", "bdi"].contains(&&*elements[at].name);
        elements[at].text = match blank {
            true => text.split_whitespace().collect::<Vec<_>>().join(" "),
            false => text.clone(),
        };
    }
    // Separates cells.
    text + if ["td", "th", "dt", "dd", "p", "li", "option", "h1", "h2", "pre"]
        .iter()
        .any(|name| is_element && elements[at].name == *name)
    {
        " "
    } else {
        ""
    }
}
