//! The scripts of lua/compact/. Each takes one key, the guard of its partition. What it takes beside that, answers and
//! may do at most stands at its head.

use crate::engine::redis::layout::scripts::Script;

macro_rules! scripts {
    ($($name:ident),+ $(,)?) => {
        /// All of them.
        #[derive(Debug)]
        pub struct Scripts {
            $(pub $name: Script,)+
        }

        impl Default for Scripts {
            fn default() -> Scripts {
                Scripts {
                    $($name: Script::new(concat!(
                        include_str!("../../../../lua/clock.lua"),
                        include_str!("../../../../lua/compact/jobs.lua"),
                        include_str!(concat!("../../../../lua/compact/", stringify!($name), ".lua"))
                    )),)+
                }
            }
        }

        impl Scripts {
            /// Each with its name.
            #[cfg(test)]
            pub fn each(&self) -> Vec<(&'static str, &Script)> {
                vec![$((stringify!($name), &self.$name)),+]
            }
        }
    };
}

scripts! {
    ack,
    cancel_key,
    consume,
    describe,
    destroy,
    give_back,
    inspect,
    list_far,
    list_timers,
    names,
    pause,
    peek,
    publish,
    pump,
    quota,
    release,
    respawn,
    respawn_job,
    stage,
    sum,
    touch,
    unstage,
}
