use super::*;
use crate::activation::Activations;
use crate::buffer::AlignedBytes;
use crate::import::Parsed;
use crate::pack::{Origin, matrix_from_f32};
use crate::{Error, Format, Result};
use lowbit_testing::Rng;
use std::sync::Arc;

fn manifest() -> Manifest {
    Manifest {
        version: VERSION,
        architecture: "llama".into(),
        config: serde_json::json!({"n_layers": 1}),
        matrices: BTreeMap::new(),
        tokenizer: Some("tokenizer.json".into()),
        chat_template: Some("{{ messages }}".into()),
        sampling: serde_json::Value::Null,
        activations: Activations::A16,
        source: Source { file: "tiny.gguf".into(), ..Source::default() },
        chunk_size: 0,
        chunks: vec![],
    }
}

/// A header and data with a matrix of every scale form, a vector and a document, sizes not round.
fn sample() -> (Layout, Vec<u8>, Vec<u8>) {
    let values = Rng::new(3).floats(20 * 40, 1.0);
    let origin = Origin { file: "t", tensor: "t" };
    let items = [
        Item::Matrix { name: "a".into(), format: Format::Q4, n: 20, k: 40 },
        Item::Vector { name: "v".into(), len: 5 },
        Item::Matrix { name: "b".into(), format: Format::Q8, n: 20, k: 40 },
        Item::Document { name: "tokenizer.json".into(), len: 7 },
        Item::Matrix { name: "c".into(), format: Format::F32, n: 20, k: 40 },
        Item::Matrix { name: "d".into(), format: Format::Q4k, n: 20, k: 512 },
    ];
    let layout = Layout::new("t.lowbit", manifest(), &items).unwrap();
    let mut data = vec![0; layout.data_len()];
    for (name, format) in [("a", Format::Q4), ("b", Format::Q8), ("c", Format::F32)] {
        let matrix = matrix_from_f32(format, 40, &values, origin).unwrap();
        let Some(Place::Planes(planes)) = layout.place(name) else { panic!("{name}") };
        for (start, plane) in planes.into_iter().zip(matrix.planes()) {
            data[start..start + plane.len()].copy_from_slice(plane);
        }
    }
    for (name, bytes) in
        [("v", [0x3f80_0000u32.to_le_bytes(); 5].concat()), ("tokenizer.json", b"{\"a\":1}".to_vec())]
    {
        let Some(Place::Flat(start)) = layout.place(name) else { panic!("{name}") };
        data[start..start + bytes.len()].copy_from_slice(&bytes);
    }
    let hashes = (0..data.len().div_ceil(CHUNK)).map(|i| sha256_hex(&data[layout.chunk_range(i)])).collect();
    let header = layout.header_bytes(hashes, "").unwrap();
    (layout, header, data)
}

fn parse(bytes: &[u8]) -> Result<Header> {
    parse_header("t.lowbit", bytes, Some(bytes.len() as u64))?.complete("t.lowbit")
}

fn refusal(header: &[u8], data: &[u8]) -> String {
    parse(&[header, data].concat()).unwrap_err().to_string()
}

/// A header made of this JSON, correctly padded.
fn raw_header(json: &serde_json::Value) -> Vec<u8> {
    let mut json = json.to_string();
    while !(json.len() + 8).is_multiple_of(256) {
        json.push(' ');
    }
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// The sample's header as JSON, and the manifest in it.
fn opened() -> (serde_json::Value, serde_json::Value, Vec<u8>) {
    let (_, header, data) = sample();
    let json: serde_json::Value = serde_json::from_slice(&header[8..]).unwrap();
    let manifest = serde_json::from_str(json["__metadata__"][MANIFEST_KEY].as_str().unwrap()).unwrap();
    (json, manifest, data)
}

#[test]
fn round_trip() {
    let (layout, header, data) = sample();
    let file = [&header[..], &data].concat();
    assert_eq!(header.len() % 256, 0);
    let parsed = parse(&file).unwrap();
    assert_eq!(parsed.fingerprint, sha256_hex(&header));
    assert_eq!((parsed.data_start, parsed.data_len), (header.len(), data.len()));
    assert_eq!(layout.header(&header).unwrap().fingerprint, parsed.fingerprint);
    let artifact = Artifact::new(parsed, Arc::new(AlignedBytes::copy_of(&data))).unwrap();
    artifact.verify().unwrap();
    assert_eq!(artifact.vector("v").unwrap(), [1.0; 5]);
    assert_eq!(artifact.document("tokenizer.json").unwrap(), b"{\"a\":1}");
    let values = Rng::new(3).floats(20 * 40, 1.0);
    let matrix = artifact.matrix("c").unwrap();
    let mut row = [0.0; 40];
    matrix.dequantize_row(19, &mut row);
    assert_eq!(row, values[19 * 40..]);
    let direct = matrix_from_f32(Format::Q8, 40, &values, Origin { file: "", tensor: "" }).unwrap();
    assert_eq!(artifact.matrix("b").unwrap().w.as_slice(), direct.w.as_slice());
    assert!(matches!(artifact.matrix("nothing"), Err(Error::MissingTensor { .. })));
}

#[test]
fn the_length_of_the_header_is_fixed_before_hashes_are_known() {
    let (layout, header, data) = sample();
    let hash = "a".repeat(64);
    let hashes = vec![hash.clone(); data.len().div_ceil(CHUNK)];
    assert_eq!(layout.header_bytes(hashes.clone(), &hash).unwrap().len(), header.len());
    assert_eq!(layout.data_start(), header.len());
    assert!(layout.header_bytes(vec![], "").is_err());
}

#[test]
fn any_safetensors_reader_opens_it() {
    let (_, header, data) = sample();
    let file = [header, data].concat();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(tensors.tensor("v").unwrap().dtype(), safetensors::Dtype::F32);
    assert_eq!(tensors.tensor("a.S").unwrap().shape(), [256]);
    let ours = crate::import::safetensors::parse("t", &file, Some(file.len() as u64)).unwrap();
    assert_eq!(ours.complete("t").unwrap().tensors.len(), tensors.len());
}

#[test]
fn prefixes_ask_for_more() {
    let (_, header, data) = sample();
    let len = Some((header.len() + data.len()) as u64);
    for cut in [0, 3, 8, 100, header.len() - 1] {
        match parse_header("t", &header[..cut], len).unwrap() {
            Parsed::NeedMore { at_least } => {
                assert!(at_least > cut as u64 && at_least <= header.len() as u64)
            }
            Parsed::Complete(_) => panic!("complete at {cut}"),
        }
    }
    assert!(matches!(parse_header("t", &header, None).unwrap(), Parsed::Complete(_)));
    assert!(refusal(&header[..100], &[]).contains("truncated"));
    assert!(refusal(&header, &data[1..]).contains("fetch it again"));
}

#[test]
fn corrupt_chunks_are_found() {
    let (_, header, mut data) = sample();
    let parsed = parse(&[&header[..], &data].concat()).unwrap();
    parsed.verify_chunk(0, &data).unwrap();
    data[1000] ^= 4;
    let error = parsed.verify_chunk(0, &data).unwrap_err();
    assert_eq!(error.code(), "corrupt-data");
    assert!(error.to_string().starts_with("t.lowbit: chunk 0: SHA-256 is "));
    assert!(parsed.verify_chunk(1, &data).is_err());
}

#[test]
fn hashes_of_chunks_stand_in_their_order() {
    let data: Vec<u8> = (0..1000u32).map(|i| i as u8).collect();
    let expected: Vec<String> = data.chunks(64).map(sha256_hex).collect();
    assert_eq!(chunk_hashes(&data, 64), expected);
    assert!(chunk_hashes(&[], 64).is_empty());
}

#[test]
fn damaged_scales_are_found() {
    let (layout, header, mut data) = sample();
    let Some(Place::Planes([_, _, s, ..])) = layout.place("a") else { panic!() };
    data[s + 7] = 0x7c;
    let Some(Place::Flat(v)) = layout.place("v") else { panic!() };
    data[v + 6..v + 8].copy_from_slice(&[0xc0, 0x7f]);
    let parsed = parse(&[&header[..], &data].concat()).unwrap();
    let artifact = Artifact::new(parsed, Arc::new(AlignedBytes::copy_of(&data))).unwrap();
    assert!(
        artifact.matrix("a").unwrap_err().to_string().contains("t.lowbit: tensor a: plane S, element 3 is")
    );
    assert!(artifact.vector("v").unwrap_err().to_string().contains("tensor v: element 1 is NaN"));
}

#[test]
fn refuses_bad_headers() {
    type Change = fn(&mut serde_json::Value, &mut serde_json::Value);
    let cases: &[(Change, &str)] = &[
        (|_, m| m["version"] = [9, 0].into(), "artifact version 9.0 is not supported"),
        (|_, m| m["chunks"] = serde_json::json!([]), "manifest.chunks: has 0 hashes"),
        (|_, m| m["chunks"][0] = "xyz".into(), "hash 0 is no lower-case SHA-256"),
        (|_, m| m["chunk_size"] = 0.into(), "manifest.chunk_size: is 0"),
        (|_, m| m["chunk_size"] = 1000.into(), "manifest.chunk_size: is 1000"),
        (|_, m| m["matrices"]["a"]["n"] = 40.into(), "matrix a: plane W is U8"),
        (|_, m| m["matrices"]["a"]["n"] = u64::MAX.into(), "matrix a: its shape"),
        (|_, m| m["matrices"]["a"]["k"] = 0.into(), "matrix a: its shape"),
        (|_, m| m["matrices"]["a"]["format"] = "q4m".into(), "tensor a.M is missing"),
        (|_, m| m["matrices"]["a"]["format"] = "q9".into(), "unknown variant"),
        (
            |_, m| m["matrices"]["a"]["format"] = "q4k".into(),
            "matrix a: its rows have 40 weights, those of q4k",
        ),
        (|_, m| m["matrices"]["d"]["format"] = "q6k".into(), "tensor d.X is missing"),
        (|_, m| m["matrices"]["d"]["format"] = "q4".into(), "matrix d: plane S is U8"),
        (|_, m| m["matrices"]["d"]["n"] = 40.into(), "matrix d: plane W is U8"),
        (|h, _| h["z"] = h.as_object_mut().unwrap().remove("d.D").unwrap(), "tensor d.D is missing"),
        (|_, m| m["matrices"]["z"] = m["matrices"]["a"].clone(), "tensor z.W is missing"),
        (|_, m| m["tokenizer"] = "other.json".into(), "tensor other.json is missing"),
        (|_, m| m["source"] = 1.into(), "manifest: invalid type"),
        (|h, _| h["v"]["dtype"] = "F16".into(), "tensor v: its offsets"),
        (|h, _| h["v"]["dtype"] = "Q3".into(), "tensor v: its dtype Q3 is unknown"),
        (|h, _| h["v"]["shape"] = [5, 1].into(), "tensor v: its shape is [5, 1]"),
        (|h, _| h["v"]["shape"] = [u64::MAX, 8].into(), "overflows"),
        (|h, _| h["v"]["data_offsets"][1] = u64::MAX.into(), "tensor v: its offsets"),
        (|h, _| h["a.W"]["data_offsets"] = [256, 1280].into(), "without gaps or overlaps"),
        (|h, _| h["v"]["extra"] = 1.into(), "unknown field"),
        (|h, _| h["__metadata__"] = serde_json::json!({}), "no lowbit artifact"),
    ];
    for (change, expected) in cases {
        let (mut header, mut manifest, data) = opened();
        change(&mut header, &mut manifest);
        if header["__metadata__"][MANIFEST_KEY].is_string() {
            header["__metadata__"][MANIFEST_KEY] = manifest.to_string().into();
        }
        let message = refusal(&raw_header(&header), &data);
        assert!(message.starts_with("t.lowbit: ") && message.contains(expected), "{expected}: {message}");
    }
    let (_, header, data) = sample();
    let mut unaligned = header.clone();
    let len = u64::from_le_bytes(header[..8].try_into().unwrap()) + 1;
    unaligned[..8].copy_from_slice(&len.to_le_bytes());
    unaligned.push(b' ');
    assert!(refusal(&unaligned, &data).contains("expected a multiple of 256"));
    let twice = String::from_utf8(header[8..].to_vec()).unwrap().replacen("\"b.S\"", "\"b.W\"", 1);
    let twice = [&header[..8], twice.as_bytes()].concat();
    assert!(refusal(&twice, &data).contains("tensor b.W: this name occurs twice"));
    let huge = [&u64::MAX.to_le_bytes()[..], &header[8..]].concat();
    assert!(refusal(&huge, &data).contains("header length: is 18446744073709551615"));
}

#[test]
fn layouts_refuse_duplicates_and_overflow() {
    let vector = |len| Item::Vector { name: "v".into(), len };
    assert!(Layout::new("t", manifest(), &[vector(1), vector(1)]).is_err());
    assert!(Layout::new("t", manifest(), &[vector(usize::MAX)]).is_err());
}

#[test]
fn files_are_read_and_verified() {
    let (_, header, mut data) = sample();
    let path = std::env::temp_dir().join(format!("lowbit-container-{}.lowbit", std::process::id()));
    std::fs::write(&path, [&header[..], &data].concat()).unwrap();
    let artifact = Artifact::read(&path, true).unwrap();
    assert_eq!(artifact.data().as_slice(), data);
    data[5] ^= 1;
    std::fs::write(&path, [&header[..], &data].concat()).unwrap();
    assert!(matches!(Artifact::read(&path, true), Err(Error::Corrupt { chunk: 0, .. })));
    Artifact::read(&path, false).unwrap();
    std::fs::write(&path, &header[..50]).unwrap();
    assert!(matches!(Artifact::read(&path, false), Err(Error::Malformed { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Artifact::read(&path, false), Err(Error::Io { .. })));
}

#[test]
fn of_several_damaged_chunks_the_first_is_named() {
    let items = [Item::Document { name: "tokenizer.json".into(), len: 4 * CHUNK + 5 }];
    let layout = Layout::new("t", manifest(), &items).unwrap();
    let mut data: Vec<u8> = (0..layout.data_len()).map(|i| (i >> 8) as u8).collect();
    let header = layout.header_bytes(chunk_hashes(&data, CHUNK), "").unwrap();
    let path = std::env::temp_dir().join(format!("lowbit-chunks-{}.lowbit", std::process::id()));
    let write = |data: &[u8]| std::fs::write(&path, [&header[..], data].concat()).unwrap();
    write(&data);
    assert_eq!(Artifact::read(&path, true).unwrap().data().as_slice(), data);
    data[CHUNK + 3] ^= 1;
    data[3 * CHUNK] ^= 1;
    write(&data);
    assert!(matches!(Artifact::read(&path, true), Err(Error::Corrupt { chunk: 1, .. })));
    std::fs::remove_file(&path).unwrap();
}
