"""What each command says of itself."""

DOCTOR_USAGE = """\
usage: unstable doctor [--config NAME|PATH] [--FIELD VALUE ...]
       unstable doctor RUN_DIR

Says what this machine has, what a config needs of it, the plan, and whether it would run. Or, of a
run's folder: whether the run goes on, what it does and waits for, when it last moved, the last
error of each log, and what to do next; exit code 1 where it has died, failed or stopped."""

EXPLOIT_USAGE = """\
usage: unstable exploit RUN_DIR[@VERSION] [--games NAME ...] [--samples N] [--FIELD VALUE ...]
       unstable exploit RUN_DIR[@VERSION] --learn [--FIELD VALUE ...]

Computes exactly how exploitable a version of a run (the newest, if none is given) is, in those of
the run's games that can be solved exactly, or in the named ones. RUN_DIR is a folder that unstable
train left. With --learn, for games of any size, a best response to the version is trained, from it
on; what that wins is a lower bound. What it means is in docs/exploitability.md."""

EVAL_USAGE = """\
usage: unstable eval RUN_DIR[@VERSION] [--games N] [--opponents NAME ...] [--FIELD VALUE ...]

Plays a version of a run (the newest, if none is given) against fixed opponents: random, expert,
rules, base, or those that the run's config names. RUN_DIR is a folder that unstable train left,
VERSION a number or best; --version VERSION is the same.
--eval.temperature [1.0,0.0] plays all games twice, sampled and greedy;
--eval.votes 5 plays the action that is named most often in five samples a turn;
--eval.exploitability.every 1 computes how exploitable the version is, too."""

PLAY_USAGE = """\
usage: unstable play RUN_DIR[@VERSION] [--game ENV] [--seat N] [--opponent PLAYER] ...
       unstable play [--config NAME|PATH] [--game ENV] [--seat N] [--opponent PLAYER] ...

Plays one game at the terminal: you against a version of a run (the newest, if none is given), or
against PLAYER: random, expert (the default without a run), rules, base, an opponent that the config
names, or RUN_DIR[@VERSION]. ENV is one of the config's games or any other; the default is the
config's first. --seed N deals the same game again, --temperature T is the opponent's, 0: greedy;
--FIELD VALUE sets fields of the config. In the game ? lists what can be asked: legal actions, a
solver's hints, the model's reasoning and probabilities. The game is saved in
outputs/play-<game-players-time>, or in --run_dir DIR."""

REPLAY_USAGE = """\
usage: unstable replay RUN_DIR GAME [--purpose train|eval] [--version N]
       unstable replay RUN_DIR GAME --from TURN [--with PLAYER] [--seat N] [--opponent PLAYER] ...

Plays a recorded game again from its seed and says whether all is as it was; exit code 1 where not.
GAME is its number in the viewer. Programs are asked again, and so are models on the embedded engine
whose version is kept; of others a line says why not.
With --from, the game is played as recorded up to TURN (1 is the first), and on from there by PLAYER
at one seat (the trained one's, or --seat N): me (the default), random, expert, rules, base, an
opponent of the run, or RUN_DIR[@VERSION]. The others are who they were, or --opponent PLAYER."""

REPORT_USAGE = """\
usage: unstable report RUN_DIR... [--out FILE]

Writes one HTML file on a run, or on several compared: whether it learned, curves, ratings, how
training went, what was set, and its games to step through. It opens without a network. FILE is
report.html, in the run's folder where there is one run."""

WATCH_USAGE = """\
usage: unstable watch RUN_DIR [--once]

Shows a run's dashboard in this terminal, while it goes on or afterwards, from its folder alone; so
also from another machine that sees the folder. q leaves. --once prints it as it is now."""

RUNS_USAGE = """\
usage: unstable runs [FOLDER] [--tag WORD]

Lists the runs in a folder (outputs, if none is given), the newest last: what each is at, how far,
its newest score, when it last wrote, and its tags (--tags WORD ... of unstable train)."""

COMPLETION_USAGE = """\
usage: unstable completion bash|zsh

Prints what completes commands and options by Tab. In ~/.bashrc or ~/.zshrc:
  eval "$(unstable completion bash)\""""

EXPORT_USAGE = """\
usage: unstable export RUN_DIR[@VERSION] [--merged] [--out FOLDER] [--push OWNER/NAME]

Writes a version of a run (the newest, if none is given) as a folder that others load: a PEFT
adapter, or with --merged whole weights; with tokenizer, prompts and a model card. FOLDER is new or
empty; by default it lies in the run's, in exports/. --push uploads it to the hub too."""

USAGE = """\
usage: unstable train  [--config NAME|PATH] [--FIELD VALUE ...]   train a model by self-play
       unstable train  --resume RUN_DIR [--steps N ...]           go on where it ended
       unstable train  --fork RUN_DIR[@VERSION] [--FIELD VALUE ...]  begin another from a version
       unstable sft    [--config NAME|PATH] [--FIELD VALUE ...]   train a start on examples first
       unstable sft    --resume RUN_DIR                           go on after an interrupt
       unstable world  [--config NAME|PATH] [--FIELD VALUE ...]   make a tiny base model
       unstable eval   RUN_DIR[@VERSION] [--games N] ...          play a finished version again
       unstable exploit RUN_DIR[@VERSION] [--games NAME ...]      how far from an equilibrium?
       unstable play   [RUN_DIR[@VERSION]] [--game ENV] ...       play a game against a model
       unstable replay RUN_DIR GAME [--from TURN --with PLAYER]   play a recorded game again
       unstable report RUN_DIR... [--out FILE]                    a page on runs, and their games
       unstable watch  RUN_DIR                                    a run's dashboard, from anywhere
       unstable runs   [FOLDER] [--tag WORD]                      list runs, with state and score
       unstable export RUN_DIR[@VERSION] [--merged] [--out FOLDER]  a folder that others load
       unstable config [--config NAME|PATH] [--FIELD VALUE ...]   print the resolved config
       unstable doctor [--config NAME|PATH] [--FIELD VALUE ...]   would it run on this machine?
       unstable doctor RUN_DIR                                    what does that run do, or why not?
       unstable model  NAME                                       print a base model's folder
       unstable games                                             list the vetted games
       unstable completion bash|zsh                               complete by Tab

Short forms: --model, --num_actors, --num_learners, --steps, --run_dir, --name, --tags, --init,
--wandb, --seed.
Every field has its own option, such as --learner.learning_rate 2e-5 or --games.0.env Nim-v0;
unstable train --help learner lists those of a section, --help all lists everything."""
