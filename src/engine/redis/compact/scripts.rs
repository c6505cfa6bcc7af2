//! The scripts of lua/compact/. Each takes one key, the guard of its partition. What it takes beside that, answers and
//! may do at most stands at its head.

use crate::engine::redis::layout::scripts::Script;

/// A part of a script: a file, or a line.
macro_rules! part {
    (file $name:literal) => {
        include_str!(concat!("../../../../lua/compact/", $name, ".lua"))
    };
    (line $text:literal) => {
        concat!($text, "\n")
    };
    (shared $name:literal) => {
        include_str!(concat!("../../../../lua/", $name, ".lua"))
    };
    // What publish_with.lua stands on.
    (before "publish_with") => {
        concat!(
            part!(file "queue"),
            part!(file "spreading"),
            part!(file "value"),
            part!(file "horizon"),
            part!(line "local function jobs()"),
            part!(file "job"),
            part!(file "change"),
            part!(file "view"),
            part!(line "return find, remove, free_key, state_of, details_of end"),
            part!(line "local function pieces()"),
            part!(file "pieces"),
            part!(file "new_queue"),
            part!(line "return give_number end"),
        )
    };
    // The same and publish_with.lua, as a function.
    (function "publish_with") => {
        concat!(
            part!(before "publish_with"),
            part!(line "local function publish(ARGV, looks, own, told_all, from, judged)"),
            part!(file "publish_with"),
            part!(line "end"),
        )
    };
}

macro_rules! scripts {
    ($($name:ident: $($kind:ident $part:tt)*;)+) => {
        /// All of them.
        #[derive(Debug)]
        pub struct Scripts {
            $(pub $name: Script,)+
        }

        impl Default for Scripts {
            fn default() -> Scripts {
                let mut scripts = Scripts {
                    $($name: Script::new(concat!(
                        include_str!("../../../../lua/clock.lua"),
                        include_str!("../../../../lua/compact/base.lua"),
                        $(part!($kind $part),)*
                        include_str!(concat!("../../../../lua/compact/", stringify!($name), ".lua"))
                    )),)+
                };
                scripts.set_lasting();
                scripts
            }
        }
    };
}

// Each with the preambles that it needs. What few calls need stands in a function, which makes it when it is called.
scripts! {
    ack: file "queue"
        line "local function jobs()" file "value" file "job" line "return find, remove end";
    cancel_key: file "queue" file "value" file "job";
    consume: file "queue";
    count_far: file "number" file "value" file "rank" file "due";
    count_near: file "number" file "due";
    describe: file "queue" file "value" file "job" file "view";
    destroy: file "queue" file "value" file "job";
    give_back: file "queue" file "value" file "job" file "change";
    inspect: file "queue" file "value" file "job" file "view";
    list_far: file "queue" file "number" file "value" file "rank";
    list_timers: file "queue" file "number" file "rank";
    names: file "pieces";
    pause: file "queue";
    peek: file "queue" file "value" file "job" file "view";
    publish: file "queue" file "spreading" file "horizon"
        line "local function jobs()" file "value" file "job" line "return find, remove end"
        line "local function pieces()" file "pieces" file "new_queue" line "return give_number end";
    publish_with: line "local looks, own, told_all, from, judged" before "publish_with";
    pump: file "queue" file "number" file "value"
        line "local function jobs()" file "job" file "change" line "return find, remove, die end"
        line "local function pieces()" file "pieces" line "return add_name, remove_name end";
    quota:;
    release: file "queue" file "value" file "job" file "change" file "horizon" file "delay";
    respawn: file "queue" file "value" file "job" file "change";
    respawn_job: file "queue" file "value" file "job" file "change" file "horizon" file "delay";
    stage:;
    sum: file "queue" file "pieces";
    touch: file "queue" file "value" file "job" file "change";
    unstage:;
    step_schedule: function "publish_with" shared "schedules";
    prepare: function "publish_with";
    settle: function "publish_with";
    spread: file "queue" file "spreading" file "pieces" file "new_queue";
    read_schedules: shared "schedules";
    due_schedules: shared "schedules";
    name_schedule:;
}

impl Scripts {
    /// What these have done is answered when replicas have it, where the pool asks for that. What a failover forgets of the
    /// others is done once more: a hand-over, a touch, a pump.
    fn set_lasting(&mut self) {
        for script in [
            &mut self.ack,
            &mut self.cancel_key,
            &mut self.destroy,
            &mut self.pause,
            &mut self.prepare,
            &mut self.publish,
            &mut self.publish_with,
            &mut self.release,
            &mut self.respawn,
            &mut self.respawn_job,
            &mut self.settle,
            &mut self.spread,
            &mut self.step_schedule,
        ] {
            script.set_lasting();
        }
    }
}
