//! Conversations: the cache is reused and never wrong, whatever happens to an answer.

#![allow(clippy::unwrap_used)]

mod support;

use lowbit_engine::oracle::Oracle;
use lowbit_engine::sampler::Sampler;
use lowbit_engine::{
    Event, FinishReason, GenerateOptions, Generation, Message, Model, SamplingOptions, Session,
};
use support::{model_of, tiny_gemma3_config, tiny_model};

fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: Some(max_tokens),
        sampling: SamplingOptions::greedy(),
        ignore_eos: true,
        chunk: 8,
        ..Default::default()
    }
}

/// Runs to the end: tokens, text and reason.
fn finish(
    mut generation: Generation,
    model: &mut Model<Oracle>,
    session: &mut Session<Oracle>,
) -> (Vec<u32>, String, FinishReason) {
    let mut all = String::new();
    loop {
        match generation.step(model, session).unwrap() {
            Event::Prefill { done, total } => assert!(done <= total),
            Event::Token { id, text } => {
                assert_eq!(generation.tokens().last(), Some(&id));
                all.push_str(&text);
            }
            Event::Done { reason, text } => {
                all.push_str(&text);
                return (generation.tokens().to_vec(), all, reason);
            }
        }
    }
}

fn answer(model: &mut Model<Oracle>, session: &mut Session<Oracle>, prompt: &[u32], n: usize) -> Vec<u32> {
    let generation = Generation::new(model, session, prompt.to_vec(), options(n)).unwrap();
    finish(generation, model, session).0
}

fn fresh_answer(model: &mut Model<Oracle>, prompt: &[u32], n: usize) -> Vec<u32> {
    let mut session = model.session().unwrap();
    answer(model, &mut session, prompt, n)
}

fn prompt(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (seed * 31 + i * 7) % 250).collect()
}

#[test]
fn a_second_turn_costs_only_its_own_tokens_and_equals_a_fresh_one() {
    let mut model = tiny_model(128);
    let mut session = model.session().unwrap();
    let mut history = prompt(1, 20);
    history.extend(answer(&mut model, &mut session, &history, 6));
    history.extend(prompt(2, 9));
    let generation = Generation::new(&model, &mut session, history.clone(), options(6)).unwrap();
    // The last token of an answer is chosen but not run.
    assert_eq!(generation.stats().reused_tokens, 25);
    let second = finish(generation, &mut model, &mut session).0;
    assert_eq!(second, fresh_answer(&mut model, &history, 6));
}

#[test]
fn a_choice_from_the_largest_logits_is_that_from_all() {
    let mut model = tiny_model(128);
    let hot = SamplingOptions { temperature: Some(2.0), seed: Some(5), ..Default::default() };
    for sampling in [
        SamplingOptions::greedy(),
        hot.clone(),
        SamplingOptions { repetition_penalty: Some(1.5), ..hot.clone() },
        SamplingOptions { top_k: Some(0), ..hot },
    ] {
        let options = GenerateOptions { sampling: sampling.clone(), ..options(30) };
        let mut session = model.session().unwrap();
        let generation = Generation::new(&model, &mut session, prompt(1, 20), options).unwrap();
        let (tokens, ..) = finish(generation, &mut model, &mut session);

        let mut sampler = Sampler::new(sampling.or(model.codec().sampling())).unwrap();
        prompt(1, 20).into_iter().for_each(|id| sampler.accept(id));
        let (mut next, mut logits) = (prompt(1, 20), Vec::new());
        session.clear();
        for (i, &token) in tokens.iter().enumerate() {
            model.run(&mut session, &next, next.len() - 1..next.len(), &mut logits, None).unwrap();
            let id = sampler.sample(&logits).unwrap();
            assert_eq!(token, id, "token {i}, {sampling:?}");
            sampler.accept(id);
            next = vec![id];
        }
        assert_eq!(tokens.len(), 30);
    }
}

#[test]
fn an_edited_history_is_run_again_from_the_change() {
    let mut model = tiny_model(128);
    let mut session = model.session().unwrap();
    let mut history = prompt(1, 30);
    answer(&mut model, &mut session, &history, 5);
    history[17] ^= 1;
    let generation = Generation::new(&model, &mut session, history.clone(), options(5)).unwrap();
    assert_eq!(generation.stats().reused_tokens, 17);
    let edited = finish(generation, &mut model, &mut session).0;
    assert_eq!(edited, fresh_answer(&mut model, &history, 5));
}

#[test]
fn windows_forget_nothing_that_an_edited_history_needs() {
    let mut model = model_of(tiny_gemma3_config(), 64).unwrap();
    let first = prompt(1, 21);
    for kept in [20, 16, 8, 6, 5, 4, 1, 0] {
        let mut session = model.session().unwrap();
        answer(&mut model, &mut session, &first, 10);
        let edited = [&first[..kept], &prompt(2, 9)].concat();
        let expected = fresh_answer(&mut model, &edited, 12);
        assert_eq!(answer(&mut model, &mut session, &edited, 12), expected, "{kept} kept");
        let longer = [&edited[..], &expected, &prompt(3, 7)].concat();
        let expected = fresh_answer(&mut model, &longer, 6);
        assert_eq!(answer(&mut model, &mut session, &longer, 6), expected, "{kept} kept, then a turn");
    }
}

#[test]
fn asking_the_same_again_runs_only_the_last_token() {
    let mut model = tiny_model(128);
    let mut session = model.session().unwrap();
    let first = answer(&mut model, &mut session, &prompt(3, 20), 5);
    let generation = Generation::new(&model, &mut session, prompt(3, 20), options(5)).unwrap();
    assert_eq!(generation.stats().reused_tokens, 19);
    assert_eq!(finish(generation, &mut model, &mut session).0, first);
}

#[test]
fn a_dropped_answer_leaves_the_session_usable() {
    let mut model = tiny_model(128);
    let other = prompt(5, 25);
    let expected = fresh_answer(&mut model, &other, 6);
    // 20 tokens in chunks of 8: steps 1 to 3 are prefill, the rest decode.
    for steps in 0..8 {
        for next in [&other, &prompt(4, 20)] {
            let mut session = model.session().unwrap();
            let mut dropped = Generation::new(&model, &mut session, prompt(4, 20), options(20)).unwrap();
            for _ in 0..steps {
                dropped.step(&mut model, &mut session).unwrap();
            }
            drop(dropped);
            let after = answer(&mut model, &mut session, next, 6);
            let expected = if *next == other { expected.clone() } else { fresh_answer(&mut model, next, 6) };
            assert_eq!(after, expected, "after {steps} steps");
        }
    }
}

#[test]
fn an_aborted_answer_says_so_and_stays_ended() {
    let mut model = tiny_model(64);
    let mut session = model.session().unwrap();
    let mut generation = Generation::new(&model, &mut session, prompt(1, 20), options(20)).unwrap();
    generation.step(&mut model, &mut session).unwrap();
    let aborted = Event::Done { reason: FinishReason::Aborted, text: String::new() };
    assert_eq!(generation.abort(), aborted);
    assert_eq!(generation.step(&mut model, &mut session).unwrap(), aborted);
    assert_eq!(generation.finished(), Some(FinishReason::Aborted));
}

#[test]
fn an_abort_gives_the_text_held_back() {
    let mut model = tiny_model(64);
    let mut session = model.session().unwrap();
    let whole = Generation::new(&model, &mut session, prompt(1, 20), options(3)).unwrap();
    let (_, text, _) = finish(whole, &mut model, &mut session);
    // A stop string that begins like the answer, so that all of the answer is held back.
    let options = GenerateOptions { stop: vec![format!("{text}\u{0}more")], ..options(3) };
    let mut generation = Generation::new(&model, &mut session, prompt(1, 20), options).unwrap();
    let mut shown = String::new();
    while generation.tokens().len() < 3 {
        if let Event::Token { text, .. } = generation.step(&mut model, &mut session).unwrap() {
            shown.push_str(&text);
        }
    }
    let Event::Done { text: rest, .. } = generation.abort() else { panic!("not done") };
    assert_eq!(shown + &rest, text);
}

#[test]
fn prefill_reports_how_far_it_is() {
    let mut model = tiny_model(64);
    let mut session = model.session().unwrap();
    let mut generation = Generation::new(&model, &mut session, prompt(1, 20), options(2)).unwrap();
    let mut events = Vec::new();
    while generation.finished().is_none() {
        events.push(match generation.step(&mut model, &mut session).unwrap() {
            Event::Prefill { done, total } => format!("{done}/{total}"),
            Event::Token { .. } => "token".to_owned(),
            Event::Done { .. } => "done".to_owned(),
        });
    }
    assert_eq!(events, ["8/20", "16/20", "20/20", "token", "token", "done"]);
    let stats = generation.stats();
    assert_eq!((stats.prompt_tokens, stats.reused_tokens, stats.generated_tokens), (20, 0, 2));
}

#[test]
fn chunks_do_not_change_the_answer() {
    let mut model = tiny_model(64);
    let expected = fresh_answer(&mut model, &prompt(1, 20), 6);
    for chunk in [1, 3, 64] {
        let mut session = model.session().unwrap();
        let options = GenerateOptions { chunk, ..options(6) };
        let generation = Generation::new(&model, &mut session, prompt(1, 20), options).unwrap();
        assert_eq!(finish(generation, &mut model, &mut session).0, expected, "chunks of {chunk}");
    }
}

#[test]
fn a_full_context_ends_the_answer_and_a_long_prompt_is_an_error() {
    let mut model = tiny_model(24);
    let mut session = model.session().unwrap();
    let generation = Generation::new(&model, &mut session, prompt(1, 20), options(100)).unwrap();
    let (tokens, _, reason) = finish(generation, &mut model, &mut session);
    // Four free positions, and the token chosen from the last one.
    assert_eq!((tokens.len(), reason), (5, FinishReason::Context));

    let filled = Generation::new(&model, &mut session, prompt(1, 24), options(100)).unwrap();
    assert_eq!(finish(filled, &mut model, &mut session).0.len(), 1);

    let error = Generation::new(&model, &mut session, prompt(1, 25), options(100)).err().unwrap();
    assert_eq!(error.code(), "context-full");
    assert!(error.to_string().contains("25") && error.to_string().contains("24"), "{error}");
    assert_eq!(answer(&mut model, &mut session, &prompt(2, 5), 3).len(), 3, "the session goes on");
}

#[test]
fn the_end_token_and_stop_strings_end_an_answer() {
    let mut model = tiny_model(128);
    let mut session = model.session().unwrap();
    // The random model never chooses the end token by itself early: make the first chosen token look like a stop.
    let (tokens, text, _) = {
        let generation = Generation::new(&model, &mut session, prompt(1, 20), options(40)).unwrap();
        finish(generation, &mut model, &mut session)
    };
    assert_eq!(tokens.len(), 40);
    let characters: Vec<char> = text.chars().collect();
    let stop: String = characters[characters.len() / 2..][..2].iter().collect();
    let expected = &text[..text.find(&stop).unwrap()];
    let options = GenerateOptions { stop: vec![stop], ..options(40) };
    let generation = Generation::new(&model, &mut session, prompt(1, 20), options).unwrap();
    let (_, text, reason) = finish(generation, &mut model, &mut session);
    assert_eq!((text.as_str(), reason), (expected, FinishReason::StopString));
}

#[test]
fn nothing_to_answer_and_unknown_tokens_are_errors() {
    let model = tiny_model(32);
    let mut session = model.session().unwrap();
    let code = |prompt: Vec<u32>, options: GenerateOptions, session: &mut Session<Oracle>| {
        Generation::new(&model, session, prompt, options).err().unwrap().code()
    };
    assert_eq!(code(vec![], options(3), &mut session), "empty-prompt");
    assert_eq!(code(vec![1], GenerateOptions { chunk: 0, ..options(3) }, &mut session), "bad-option");
    assert_eq!(code(vec![1, 270], options(3), &mut session), "unknown-token");
}

#[test]
fn zero_tokens_are_an_answer_of_nothing() {
    let mut model = tiny_model(32);
    let mut session = model.session().unwrap();
    let generation = Generation::new(&model, &mut session, vec![1, 2], options(0)).unwrap();
    let (tokens, text, reason) = finish(generation, &mut model, &mut session);
    assert_eq!((tokens.len(), text.as_str(), reason), (0, "", FinishReason::Length));
}

#[test]
fn a_conversation_goes_through_the_template() {
    let mut model = tiny_model(128);
    let mut session = model.session().unwrap();
    let mut messages = vec![Message::new("user", "Hi")];
    let ids = model.codec().encode_chat(&messages).unwrap();
    let text = model.codec().tokenizer().decode(&ids, false);
    assert_eq!(text, "<|start|>user\nHi<|end|><|start|>assistant\n");
    assert_eq!(ids.iter().filter(|&&id| id > 255).count(), 3, "special tokens are single tokens");

    let generation = model.chat(&mut session, &messages, options(4)).unwrap();
    let (_, reply, _) = finish(generation, &mut model, &mut session);
    messages.extend([Message::new("assistant", reply), Message::new("user", "And?")]);
    let generation = model.chat(&mut session, &messages, options(4)).unwrap();
    assert!(generation.stats().reused_tokens >= ids.len());
}

#[test]
fn contexts_that_cannot_be_are_refused() {
    let model = tiny_model(7);
    assert_eq!(model.session().unwrap().capacity(), 7);
    for context in [0, 257] {
        let error = support::try_tiny_model(context).err().unwrap();
        assert!(error.to_string().contains("context"), "{error}");
    }
}
