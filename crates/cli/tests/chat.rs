//! Conversations through a pipe: turns, commands, reuse, refusals, Ctrl-C.

mod program;

use program::{EndlessChat, json, piped, refusal, scratch, worked};
use serde_json::{Value, json};

/// One object per turn.
fn turns(arguments: &[&str], input: &str) -> Vec<Value> {
    let (out, _) = worked(&piped(&[&["chat", "--json", "--temp", "0"], arguments].concat(), input));
    out.lines().map(|line| serde_json::from_str(line).expect("a JSON object per line")).collect()
}

#[test]
fn a_turn_that_reuses_the_last_says_the_same_as_one_that_does_not() {
    let turns = turns(&[], "Hello!\nWhat is 17 + 25?\n");
    let [first, second] = &turns[..] else { panic!("two turns: {turns:?}") };
    assert_eq!((first["turn"].as_u64(), second["turn"].as_u64()), (Some(1), Some(2)));
    assert_eq!(first["reused_tokens"], 0);
    let reused = second["reused_tokens"].as_u64().unwrap();
    // Everything before the first answer comes again.
    assert!(reused > 5 && reused < first["prompt_tokens"].as_u64().unwrap(), "{reused}");

    let messages = json!([
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": first["content"], "reasoning_content": first["reasoning"]},
        {"role": "user", "content": "What is 17 + 25?"},
    ]);
    let file = scratch("talk.json");
    std::fs::write(&file, messages.to_string()).unwrap();
    let fresh = json(&["run", "--temp", "0", "--messages", file.to_str().unwrap()]);
    assert_eq!(fresh["prompt_tokens"], second["prompt_tokens"]);
    assert_eq!(fresh["tokens"], second["tokens"]);
    assert!(second["content"].as_str().unwrap().contains("42"), "{second}");
}

#[test]
fn a_pipe_gets_answers_without_prompts_or_colours() {
    let (out, error) = worked(&piped(&["chat", "--temp", "0", "--no-think"], "Hello!\n\nHello!\n"));
    assert_eq!(out.lines().next(), Some("Hello! How can I help you today?"));
    assert!(!out.contains('\x1b') && !out.contains('>'), "{out:?}");
    assert_eq!(error, "");
}

#[test]
fn reset_forgets_turns_and_keeps_the_system_message() {
    let turns = turns(&["-n", "4"], "/system Be brief.\nHello!\n/reset\nHello!\n/system\nHello!\n");
    let prompts: Vec<u64> = turns.iter().map(|t| t["prompt_tokens"].as_u64().unwrap()).collect();
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(turns[0]["tokens"], turns[1]["tokens"]);
    assert!(turns[1]["reused_tokens"].as_u64() > Some(0), "the same beginning is not run again");
    assert!(turns[2]["prompt_tokens"].as_u64() > Some(prompts[0]), "the second question still has its turn");
    assert_eq!(turns[2]["reused_tokens"], 0, "another system message shares nothing");
}

#[test]
fn a_new_beginning_does_not_lack_the_room_of_the_old_one() {
    // Long enough for the first beginning to fill a page, and without -n, so that an answer asks for the whole context.
    let story =
        "Tell me a story about a dog and a cat and a bird and a big red balloon in the sky. ".repeat(2);
    let turns =
        turns(&["--no-think"], &format!("{story}\nHello!\n/reset\nHello!\n/system Be brief.\nHello!\n"));
    assert_eq!(turns.len(), 4);
}

#[test]
fn thinking_is_switched_between_turns() {
    let turns = turns(&[], "/no_think\nWhat is 17 + 25?\n/think\nWhat is 17 + 25?\n");
    assert_eq!(turns[0]["reasoning"], "");
    assert!(turns[1]["reasoning"].as_str().unwrap().contains("17 + 25"), "{}", turns[1]);
}

#[test]
fn a_conversation_is_saved_and_counted() {
    let file = scratch("saved.json");
    let input = format!("/system Be kind.\nHello!\n/save {}\nHello!\n/stats\n", file.display());
    let (_, error) = worked(&piped(&["chat", "--temp", "0"], &input));
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let roles: Vec<_> = saved["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert!(error.contains("2 turns: ") && error.contains(" were reused"), "{error}");
    assert!(!error.contains("of which 0 were reused"), "{error}");
}

#[test]
fn a_full_context_says_what_helps() {
    let sentence = refusal(&piped(
        &["chat", "--context", "32", "--temp", "0"],
        &"Tell me a story about a dog. ".repeat(8),
    ));
    assert!(sentence.starts_with("the context is full: the conversation has "), "{sentence}");
    assert!(sentence.contains("holds 32") && sentence.contains("/reset") && sentence.contains("--context"));

    let output = piped(&["chat", "--context", "24", "--temp", "0", "--json"], "Tell me a story.\n");
    let (out, error) = worked(&output);
    let turn: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(turn["finish_reason"], "context");
    assert!(error.contains("the context is full") && error.contains("/reset"), "{error}");
}

#[test]
fn a_script_stops_at_an_unknown_command() {
    let sentence = refusal(&piped(&["chat"], "/nonsense\nHello!\n"));
    assert_eq!(sentence, "there is no command /nonsense; /help lists them");
    let sentence = refusal(&piped(&["chat"], "/save\n"));
    assert!(sentence.contains("/save talk.json"), "{sentence}");
}

#[test]
fn interrupting_stops_the_answer_and_not_the_chat() {
    let chat = EndlessChat::start(&[]);
    chat.interrupt();
    let error = chat.leave();
    assert!(error.starts_with("(stopped)\n1 turn: "), "{error}");
}
