//! Canonical encoding of values as bytes. Different values have different bytes.

use rusqlite::types::ValueRef;

use hqdl_values::value::Value;

/// Appends the canonical bytes of values.
pub fn write_canonical_bytes(values: &[ValueRef<'_>], out: &mut Vec<u8>) {
    for value in values {
        match value {
            ValueRef::Null => out.push(0),
            ValueRef::Integer(i) => {
                out.push(1);
                out.extend(i.to_le_bytes());
            }
            ValueRef::Real(r) => {
                out.push(2);
                out.extend(r.to_bits().to_le_bytes());
            }
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
                out.push(if matches!(value, ValueRef::Text(_)) { 3 } else { 4 });
                out.extend((bytes.len() as u64).to_le_bytes());
                out.extend(*bytes);
            }
        }
    }
}

/// Decodes canonical bytes. Returns `None` if a value is not text, a number or NULL.
pub fn decode_values(mut bytes: &[u8]) -> Option<Vec<Value>> {
    let mut values = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        let mut value = rest;
        values.push(match tag {
            0 => Value::Null,
            1 => Value::Integer(i64::from_le_bytes(take_array(&mut value)?)),
            2 => Value::Real(f64::from_bits(u64::from_le_bytes(take_array(&mut value)?))),
            3 => {
                let length = u64::from_le_bytes(take_array(&mut value)?);
                let (text, rest) = value.split_at_checked(usize::try_from(length).ok()?)?;
                value = rest;
                Value::Text(std::str::from_utf8(text).ok()?.to_owned())
            }
            _ => return None,
        });
        bytes = value;
    }
    Some(values)
}

fn take_array(bytes: &mut &[u8]) -> Option<[u8; 8]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

#[cfg(test)]
mod tests {
    use rusqlite::types::ValueRef;

    use super::{decode_values, write_canonical_bytes};
    use hqdl_values::value::Value;

    fn encode_values(values: &[ValueRef<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_canonical_bytes(values, &mut bytes);
        bytes
    }

    #[test]
    fn canonical_bytes_decode_to_the_same_values() {
        let values = [
            ValueRef::Text("Zürich".as_bytes()),
            ValueRef::Integer(-7),
            ValueRef::Real(2.5),
            ValueRef::Null,
            ValueRef::Text(b""),
        ];
        let read: Vec<Value> = values.iter().map(|v| Value::from_sqlite(*v).unwrap()).collect();
        assert_eq!(decode_values(&encode_values(&values)).unwrap(), read);
        for unreadable in [ValueRef::Blob(b"x"), ValueRef::Text(&[0xff])] {
            assert!(decode_values(&encode_values(&[ValueRef::Integer(1), unreadable])).is_none());
        }
    }
}
