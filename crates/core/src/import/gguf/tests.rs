use super::*;
use lowbit_testing::{GgufBuilder, Meta, TinyModel};

fn parse_whole(bytes: &[u8]) -> Result<Gguf> {
    parse("test.gguf", bytes, Some(bytes.len() as u64))?.complete("test.gguf")
}

/// The message for a file that must be refused.
fn refusal(bytes: &[u8]) -> String {
    parse_whole(bytes).unwrap_err().to_string()
}

/// A file of one tensor whose header fields are given one by one.
fn one_tensor(name: &str, dims: &[u64], ty: u32, offset: u64, data: usize) -> Vec<u8> {
    let mut file = GgufBuilder::default();
    file.tensor(name, dims, ty, vec![0; data]);
    let mut bytes = file.build();
    let at = 24 + 8 + name.len() + 4 + 8 * dims.len() + 4;
    bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
    bytes
}

#[test]
fn reads_metadata_and_tensors() {
    let bytes = TinyModel::default().gguf();
    let gguf = parse_whole(&bytes).unwrap();
    assert_eq!(gguf.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.unsigned("llama.block_count").unwrap(), Some(2));
    assert_eq!(gguf.flag("tokenizer.ggml.add_bos_token").unwrap(), Some(false));
    assert_eq!(gguf.texts("tokenizer.ggml.tokens").unwrap().unwrap()[1], "<|im_start|>");
    assert_eq!(gguf.float("no.such.key").unwrap(), None);
    let embd = gguf.tensor("token_embd.weight").unwrap();
    assert_eq!((embd.ty.name(), embd.dims[0], embd.offset), ("Q8_0", 64, gguf.data_start));
    assert_eq!(gguf.tensors.len(), 2 + 2 * 9);
    let last = gguf.tensors.last().unwrap();
    assert!(last.offset + last.size <= bytes.len() as u64);
}

#[test]
fn every_prefix_asks_for_more_until_the_header_is_whole() {
    let bytes = TinyModel { n_layers: 1, ..TinyModel::default() }.gguf();
    let mut len = 0;
    for _ in 0..10_000 {
        match parse("t", &bytes[..len], Some(bytes.len() as u64)).unwrap() {
            Parsed::Complete(gguf) => {
                assert!(gguf.data_start as usize >= len && gguf.data_start < len as u64 + 32);
                return;
            }
            Parsed::NeedMore { at_least } => {
                assert!(at_least > len as u64, "no progress at {len}");
                len = at_least as usize;
            }
        }
    }
    panic!("no end");
}

#[test]
fn refuses_what_is_no_little_endian_gguf() {
    assert!(refusal(b"PK\x03\x04 not a model").contains("magic: is \"PK\\u{3}\\u{4}\", expected \"GGUF\""));
    let mut big_endian = TinyModel::default().gguf();
    big_endian[4..8].reverse();
    assert!(refusal(&big_endian).contains("a big-endian file is not supported"));
    let mut old = GgufBuilder::default();
    old.version = 1;
    assert!(refusal(&old.build()).contains("GGUF version 1 is not supported"));
    assert!(refusal(b"GGUF").contains("truncated"));
    assert!(refusal(b"").contains("truncated"));
}

#[test]
fn refuses_counts_and_lengths_beyond_the_file() {
    let sound = TinyModel::default().gguf();
    for (at, field) in [(8, "tensor_count"), (16, "metadata_kv_count"), (24, "metadata key 0")] {
        for count in [u64::MAX, u64::MAX / 2, 1 << 60, 1 << 32] {
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            assert!(refusal(&bytes).contains(field), "{field} {count}");
            // Also when the length of the file is unknown.
            assert!(parse("t", &bytes, None).is_err(), "{field} {count}");
        }
    }
    for (ty, count) in [(8, 1u64 << 61), (9, 1 << 40), (4, u64::MAX), (0, 1 << 50)] {
        let mut bytes =
            b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\x09\0\0\0".to_vec();
        bytes.extend(u32::to_le_bytes(ty));
        bytes.extend(count.to_le_bytes());
        assert!(refusal(&bytes).contains(&format!("k: is {count}")), "{}", refusal(&bytes));
    }
}

#[test]
fn refuses_deep_nesting() {
    let mut bytes = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k".to_vec();
    for _ in 0..100_000 {
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(if bytes.len() > 40 { vec![1, 0, 0, 0, 0, 0, 0, 0] } else { vec![] });
    }
    assert!(refusal(&bytes).contains("nests arrays deeper than 4"));
}

#[test]
fn refuses_bad_tensors() {
    for (bytes, expected) in [
        (one_tensor("w", &[32, 2], 2, 0, 20), "ends at byte"),
        (one_tensor("w", &[32, 2], 2, 1 << 40, 36), "ends at byte"),
        (one_tensor("w", &[32, 2], 2, u64::MAX - 31, 36), "overflows"),
        (one_tensor("w", &[32, 2], 2, 8, 64), "not a multiple of the alignment 32"),
        (one_tensor("w", &[33, 2], 2, 0, 64), "rows of 33, not a multiple of 32, the block of Q4_0"),
        (one_tensor("w", &[32, 0], 2, 0, 64), "has a dimension of 0"),
        (one_tensor("w", &[1 << 40, 1 << 40], 0, 0, 64), "overflows"),
        (one_tensor("w", &[1 << 62], 0, 0, 64), "overflows"),
        (one_tensor("w", &[1; 5], 0, 0, 64), "has 5 dimensions"),
        (one_tensor("w", &[], 0, 0, 64), "has 0 dimensions"),
        (one_tensor("w", &[32], 77, 0, 64), "type number 77 is not supported"),
        (one_tensor("", &[32], 0, 0, 128), "name has 0 bytes"),
    ] {
        let message = refusal(&bytes);
        assert!(message.contains(expected) && message.contains("tensor"), "{message}");
    }
}

#[test]
fn refuses_overlaps_and_duplicates() {
    let mut two = GgufBuilder::default();
    two.tensor("a", &[64], 0, vec![0; 256]).tensor("b", &[64], 0, vec![0; 256]);
    let mut bytes = two.build();
    let at = 24 + (8 + 1 + 4 + 8 + 4 + 8) + (8 + 1 + 4 + 8 + 4);
    bytes[at..at + 8].copy_from_slice(&224u64.to_le_bytes());
    assert!(refusal(&bytes).contains("tensor b: begins at byte"), "{}", refusal(&bytes));
    let twice = replace(&two.build(), b"\x01\0\0\0\0\0\0\0b", b"\x01\0\0\0\0\0\0\0a");
    assert!(refusal(&twice).contains("tensor a: this name occurs twice"));
    let mut keys = GgufBuilder::default();
    keys.meta("x", Meta::U32(1)).meta("y", Meta::U32(1));
    let twice = replace(&keys.build(), b"\x01\0\0\0\0\0\0\0y", b"\x01\0\0\0\0\0\0\0x");
    assert!(refusal(&twice).contains("x: this metadata key occurs twice"));
}

#[test]
fn refuses_bad_values() {
    let mut file = GgufBuilder::default();
    file.meta("general.alignment", Meta::U32(0)).tensor("w", &[8], 0, vec![0; 32]);
    for (value, shown) in [(Meta::U32(0), "is 0"), (Meta::U32(48), "is 48"), (Meta::from("x"), "is \"x\"")] {
        assert!(refusal(&file.meta("general.alignment", value).build()).contains(shown));
    }
    let mut file = GgufBuilder::default();
    let bytes = file.meta("k", "\u{e9}t\u{e9}").build();
    assert!(refusal(&replace(&bytes, "\u{e9}t".as_bytes(), b"\xff\xfet")).contains("k: is not UTF-8"));
    let bytes = file.meta("k", Meta::Bool(true)).build();
    let bytes = replace(&bytes, b"k\x07\0\0\0\x01", b"k\x07\0\0\0\x02");
    assert!(refusal(&bytes).contains("bool of value 2"));
    let bytes = replace(&bytes, b"k\x07\0\0\0", b"k\x0d\0\0\0");
    assert!(refusal(&bytes).contains("unknown value type 13"));
}

#[test]
fn typed_access_names_key_and_value() {
    let gguf = parse_whole(&TinyModel::default().gguf()).unwrap();
    let message = gguf.unsigned("general.name").unwrap_err().to_string();
    assert_eq!(message, "test.gguf: general.name: is \"tiny\", expected a non-negative integer");
    assert!(
        gguf.required("nothing").unwrap_err().to_string().contains("nothing: this metadata key is missing")
    );
}

fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let at = bytes.windows(from.len()).position(|window| window == from).expect("the pattern is there");
    [&bytes[..at], to, &bytes[at + from.len()..]].concat()
}
