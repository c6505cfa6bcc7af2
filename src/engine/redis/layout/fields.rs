//! A script argument with named fields: a MessagePack map, decoded by the script with `cmsgpack.unpack`. Redis's
//! cmsgpack has no binary type, so bytes are encoded as strings, and only formats supported by every version are used.
//! Independent of scripts.

/// A table. The script sees an absent field as nil.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    count: usize,
    bytes: Vec<u8>,
}

impl Fields {
    /// Adds a number. Lua's numbers are exact up to 2^53.
    pub fn number(&mut self, name: &str, number: u64) -> &mut Fields {
        self.begin(name);
        self.bytes.push(0xcf);
        self.bytes.extend(number.to_be_bytes());
        self
    }

    /// Adds a string or bytes.
    pub fn text(&mut self, name: &str, text: impl AsRef<[u8]>) -> &mut Fields {
        self.begin(name);
        write_text(&mut self.bytes, text.as_ref());
        self
    }

    pub fn list(&mut self, name: &str, tables: &[Fields]) -> &mut Fields {
        self.begin(name);
        write_head(&mut self.bytes, 0xdd, tables.len());
        tables.iter().for_each(|table| table.write(&mut self.bytes));
        self
    }

    /// Returns the encoded argument.
    pub fn to_arg(&self) -> Vec<u8> {
        let mut arg = Vec::with_capacity(5 + self.bytes.len());
        self.write(&mut arg);
        arg
    }

    fn begin(&mut self, name: &str) {
        self.count += 1;
        write_text(&mut self.bytes, name.as_bytes());
    }

    fn write(&self, to: &mut Vec<u8>) {
        write_head(to, 0xdf, self.count);
        to.extend(&self.bytes);
    }
}

fn write_text(to: &mut Vec<u8>, text: &[u8]) {
    match text.len() {
        short @ ..32 => to.push(0xa0 + short as u8),
        long => write_head(to, 0xdb, long),
    }
    to.extend(text);
}

/// Writes a type byte and a 32-bit length, which is enough for any argument.
fn write_head(to: &mut Vec<u8>, kind: u8, length: usize) {
    to.push(kind);
    to.extend((length as u32).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_messagepack() {
        let (mut inner, mut table) = (Fields::default(), Fields::default());
        inner.text("b", [255, 0]);
        table.number("n", 258).list("l", &[inner, Fields::default()]).text("t", "x".repeat(32));
        let mut expected = b"\xdf\0\0\0\x03\xa1n\xcf\0\0\0\0\0\0\x01\x02".to_vec();
        expected.extend(b"\xa1l\xdd\0\0\0\x02\xdf\0\0\0\x01\xa1b\xa2\xff\0\xdf\0\0\0\0\xa1t\xdb\0\0\0\x20");
        expected.extend([b'x'; 32]);
        assert_eq!(table.to_arg(), expected);
    }
}
