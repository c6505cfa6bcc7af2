//! JSON arrays and objects that keep a limited number of elements: a request may have millions, which would
//! take many times the memory of their text. The rest is counted.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The first elements of an array as raw text, and the number of further ones.
#[derive(Debug, Default)]
pub struct Elements<'a, const MOST: usize> {
    pub first: Vec<&'a RawValue>,
    pub more: usize,
}

/// The first fields of an object of strings, and the number of further ones. The last of duplicate fields counts.
#[derive(Debug, Default)]
pub struct Texts<const MOST: usize> {
    pub first: BTreeMap<String, String>,
    pub more: usize,
}

impl<'de, const MOST: usize> Deserialize<'de> for Elements<'de, MOST> {
    fn deserialize<D: Deserializer<'de>>(array: D) -> Result<Self, D::Error> {
        struct Collect<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for Collect<MOST> {
            type Value = Elements<'de, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
                let mut elements = Elements::default();
                while elements.first.len() < MOST {
                    match array.next_element()? {
                        Some(element) => elements.first.push(element),
                        None => return Ok(elements),
                    }
                }
                while array.next_element::<IgnoredAny>()?.is_some() {
                    elements.more += 1;
                }
                Ok(elements)
            }
        }
        array.deserialize_seq(Collect)
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Texts<MOST> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        struct Collect<const MOST: usize>;
        impl<'de, const MOST: usize> Visitor<'de> for Collect<MOST> {
            type Value = Texts<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
                let mut texts = Texts::default();
                while texts.first.len() < MOST {
                    match object.next_entry()? {
                        Some((name, text)) => _ = texts.first.insert(name, text),
                        None => return Ok(texts),
                    }
                }
                while object.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    texts.more += 1;
                }
                Ok(texts)
            }
        }
        object.deserialize_map(Collect)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64;
    type Some64<'a> = Elements<'a, MOST>;

    #[test]
    fn of_a_list_with_far_too_many_elements_few_are_kept() {
        let array = |elements: usize| format!("[{}]", vec!["1"; elements].join(", "));
        for of in [0, 1, MOST, MOST + 1, 1_000_000] {
            let text = array(of).into_bytes();
            let elements: Some64<'_> = serde_json::from_slice(&text).expect("JSON");
            let kept = (elements.first.len(), elements.more);
            assert_eq!(kept, (of.min(MOST), of.saturating_sub(MOST)), "of {of} elements, and how many more");
            assert!(elements.first.capacity() <= 2 * MOST, "memory for {}", elements.first.capacity());
        }
        // Invalid JSON after the last element kept is still an error.
        let broken = format!("{},", array(MOST + 1).trim_end_matches(']'));
        assert!(serde_json::from_str::<Some64<'_>>(&broken).is_err(), "a broken array");
    }

    #[test]
    fn of_an_object_with_far_too_many_texts_few_are_kept() {
        let object = |fields: usize| {
            let fields: Vec<String> = (0..fields).map(|n| format!("\"{n}\":\"\"")).collect();
            format!("{{{}}}", fields.join(","))
        };
        for of in [0, 1, MOST, MOST + 1, 100_000] {
            let texts: Texts<MOST> = serde_json::from_str(&object(of)).expect("JSON");
            let kept = (texts.first.len(), texts.more);
            assert_eq!(kept, (of.min(MOST), of.saturating_sub(MOST)), "of {of} fields, and how many more");
        }
        let twice: Texts<MOST> = serde_json::from_str(r#"{"a":"1","a":"2"}"#).expect("JSON");
        assert_eq!(twice.first["a"], "2", "of two with one name");
        let broken = format!("{},", object(MOST + 1).trim_end_matches('}'));
        assert!(serde_json::from_str::<Texts<MOST>>(&broken).is_err(), "a broken object");
        assert!(serde_json::from_str::<Texts<MOST>>(r#"{"a":1}"#).is_err(), "a number is no text");
    }
}
