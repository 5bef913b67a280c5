// `paceline checkpoint`: lists, checks, compares, converts and removes checkpoints.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"
#include "paceline/engine/core/option_text.h"
#include "paceline/files/checkpoint/checkpoint_copy.h"
#include "paceline/files/checkpoint/checkpoint_directory.h"
#include "paceline/files/checkpoint/manifest.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_table.h"
#include "apps/cli/option_value.h"

namespace paceline::apps {
namespace {

namespace fs = std::filesystem;

constexpr int kDifferent = 1;  // exit code if checkpoints differ or one is damaged
constexpr long kMaxKept = 1'000'000;

struct CheckpointFlags {
  int keep = 0;
  bool weights = false;
  bool boxes = false;
};

using Words = std::vector<std::string>;

// The checkpoints that a word names: "DIR" or "DIR/step-00000042".
struct Place {
  std::string directory;
  std::optional<std::int64_t> step;
};

Place place_in(const std::string& word) {
  constexpr std::string_view kPrefix = "step-";
  fs::path path(word);
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.filename();
  if (name.starts_with(kPrefix)) {
    const auto step = parse_number<std::int64_t>(std::string_view(name).substr(kPrefix.size()));
    if (step && *step >= 0) {
      const std::string parent = path.parent_path();
      return {parent.empty() ? "." : parent, step};
    }
  }
  return {path, std::nullopt};
}

void require_directory(const std::string& path) {
  if (!fs::exists(path)) throw UsageError(path + ": no such directory");
  if (!fs::is_directory(path)) throw UsageError(path + ": not a directory");
}

// The steps of a directory's checkpoints, the newest last.
std::vector<std::int64_t> steps_in(const CheckpointDirectory& directory, const std::string& name) {
  auto steps = directory.list();
  if (steps.empty()) throw UsageError(name + ": contains no checkpoint");
  return steps;
}

// A directory that has been opened for reading, and the step to use: the one that the word names,
// or the newest.
struct Chosen {
  explicit Chosen(const std::string& word)
      : place(place_in(word)), directory(opened(place.directory), {.read_only = true}) {
    if (place.step) {
      directory.require_step(*place.step);
      step = *place.step;
      return;
    }
    step = steps_in(directory, place.directory).back();
  }
  static const std::string& opened(const std::string& path) {
    require_directory(path);
    return path;
  }

  const Place place;
  const CheckpointDirectory directory;
  std::int64_t step = 0;
};

int list(const Words& words, const CheckpointFlags&) {
  require_directory(words[0]);
  const CheckpointDirectory directory(words[0], {.read_only = true});
  const auto steps = steps_in(directory, words[0]);
  int code = 0;
  fmt::print("{:>10}  {:>10}  {:>7}  {:>5}  {:>5}  {}\n", "step", "size", "tensors", "files",
             "ranks", "run");
  for (const std::int64_t step : steps) {
    try {
      const Manifest manifest = directory.read_manifest(step);
      fmt::print("{:>10}  {:>10}  {:>7}  {:>5}  {:>5}  {}\n", step, size_text(manifest.bytes()),
                 manifest.tensors.size(), manifest.files.size(), manifest.world_size,
                 manifest.run.empty() ? "unknown" : manifest.run);
    } catch (const Error& error) {
      fmt::print("{:>10}  cannot be used: {}\n", step, error.what());
      code = kDifferent;
    }
  }
  return code;
}

int show(const Words& words, const CheckpointFlags& flags) {
  const Chosen chosen(words[0]);
  const Manifest manifest = chosen.directory.read_manifest(chosen.step);
  fmt::print("step {} of run {}, saved by {} ranks: {} tensors, {} in {} files\n", manifest.step,
             manifest.run.empty() ? "unknown" : manifest.run, manifest.world_size,
             manifest.tensors.size(), size_text(manifest.bytes()), manifest.files.size());
  for (const auto& [key, text] : manifest.metadata) fmt::print("{}: {}\n", key, text);
  for (const StoredTensor& tensor : manifest.tensors) {
    fmt::print("{}  {}  {} {}\n", tensor.name, describe(tensor.dtype, tensor.shape),
               tensor.boxes.size(), tensor.boxes.size() == 1 ? "box" : "boxes");
    if (!flags.boxes) continue;
    for (const StoredBox& stored : tensor.boxes) {
      fmt::print("  {} in {} from byte {}\n", to_string(stored.box),
                 manifest.files[stored.file].name, stored.position);
    }
  }
  return 0;
}

int verify(const Words& words, const CheckpointFlags&) {
  const Place place = place_in(words[0]);
  require_directory(place.directory);
  const CheckpointDirectory directory(place.directory, {.read_only = true});
  const auto steps = place.step ? std::vector{*place.step} : steps_in(directory, place.directory);
  int code = 0;
  for (const std::int64_t step : steps) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      directory.verify(step);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const std::uint64_t bytes = directory.read_manifest(step).bytes();
      fmt::print("step {}: intact; {} read in {:.2f} s\n", step, size_text(bytes), took.count());
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInvalid) throw;
      fmt::print("step {}: damaged: {}\n", step, error.what());
      code = kDifferent;
    }
  }
  return code;
}

int diff(const Words& words, const CheckpointFlags&) {
  const Chosen first(words[0]), second(words[1]);
  const auto differences =
      diff_checkpoints(first.directory, first.step, second.directory, second.step);
  for (const TensorDifference& one : differences) fmt::print("{}: {}\n", one.name, one.what);
  fmt::print("steps {} and {}: {}\n", first.step, second.step,
             differences.empty() ? "the same"
                                 : fmt::format("{} difference{}", differences.size(),
                                               differences.size() == 1 ? "" : "s"));
  return differences.empty() ? 0 : kDifferent;
}

int merge(const Words& words, const CheckpointFlags&) {
  const Chosen from(words[0]);
  if (fs::exists(words[1]) && fs::equivalent(words[1], from.place.directory))
    throw UsageError(words[1] + ": merge needs a directory other than the checkpoint's own");
  CheckpointDirectory into(words[1], {.keep = static_cast<int>(kMaxKept)});
  merge_checkpoint(from.directory, from.step, into);
  fmt::print("{}: step {} in one file\n", words[1], from.step);
  return 0;
}

int prune(const Words& words, const CheckpointFlags& flags) {
  if (flags.keep < 1) throw UsageError("give --keep N, the number of checkpoints to keep");
  require_directory(words[0]);
  CheckpointDirectory directory(words[0]);
  const auto removed = directory.prune_to(flags.keep);
  fmt::print("{}: removed {} checkpoints, kept {}\n", words[0], removed.size(),
             directory.list().size());
  return 0;
}

int export_file(const Words& words, const CheckpointFlags& flags) {
  const Chosen from(words[0]);
  const std::uint64_t bytes =
      export_safetensors(from.directory, from.step, words[1], {.weights_only = flags.weights});
  fmt::print("{}: step {}, {}\n", words[1], from.step, size_text(bytes));
  return 0;
}

int import_file(const Words& words, const CheckpointFlags&) {
  CheckpointDirectory into(words[1], {.keep = static_cast<int>(kMaxKept)});
  const std::int64_t step = import_safetensors(words[0], into);
  fmt::print("{}: step {}\n", words[1], step);
  return 0;
}

struct Action {
  const char* name;
  const char* words;
  std::size_t num_words;
  int (*run)(const Words& words, const CheckpointFlags& flags);
  const char* summary;
};

constexpr Action kActions[] = {
    {"ls", "DIR", 1, list, "list the checkpoints"},
    {"show", "DIR", 1, show, "print tensors, boxes and the run's own information"},
    {"verify", "DIR", 1, verify, "read every byte and check it"},
    {"diff", "DIR DIR2", 2, diff, "compare two checkpoints, bit by bit"},
    {"merge", "DIR OUT", 2, merge, "write the checkpoint in one file into directory OUT"},
    {"prune", "DIR", 1, prune, "remove all but the newest N (--keep N)"},
    {"export", "DIR FILE", 2, export_file, "write one safetensors file"},
    {"import", "FILE DIR", 2, import_file, "make a checkpoint from a safetensors file"},
};

std::string actions_text() {
  std::string text = "\nActions:\n";
  for (const Action& action : kActions)
    text += fmt::format("  {:<7} {:<9} {}\n", action.name, action.words, action.summary);
  return text +
         "\nDIR is a directory of checkpoints (the newest is used) or a single one: "
         "run/step-00000042.\nExit code 1: a difference or damage was found.\n\nExamples:\n  "
         "paceline checkpoint verify run\n  paceline checkpoint diff run/step-00000100 other\n  "
         "paceline checkpoint export --weights run gpt.safetensors";
}

}  // namespace

int checkpoint_command(const Arguments& arguments) {
  CLI::App app(
      "Lists, checks, compares, converts and removes checkpoints: paceline checkpoint ACTION "
      "[options] DIR",
      "paceline checkpoint");
  CheckpointFlags flags;
  OptionTable table(app, /*has_variables=*/false);
  table.word("ACTION", "ls, show, verify, diff, merge, prune, export or import");
  table.value("--keep", "N", "Number of checkpoints that prune keeps",
              number_target(flags.keep, 1, kMaxKept));
  table.flag("--weights", "Export only the model's weights, by their names in the model",
             bool_target(flags.weights));
  table.flag("--boxes", "Show where each box is stored", bool_target(flags.boxes));
  app.footer(actions_text());
  const auto words = table.read_line(arguments, 3);
  if (!words) return 0;
  if (words->empty()) throw UsageError("no action given; see paceline checkpoint --help");
  for (const Action& action : kActions) {
    if (action.name != words->front()) continue;
    if (words->size() != action.num_words + 1)
      throw UsageError(
          fmt::format("{} needs {}; see paceline checkpoint --help", action.name, action.words));
    return action.run({words->begin() + 1, words->end()}, flags);
  }
  std::vector<std::string> known;
  for (const Action& action : kActions) known.emplace_back(action.name);
  throw UsageError(fmt::format("unknown action '{}'; choose {}", words->front(),
                               allowed_words(known, words->front())));
}

}  // namespace paceline::apps
