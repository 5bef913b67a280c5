#include "apps/cli/command_line.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "paceline/launcher/output/line_formatter.h"

#include "apps/cli/option_value.h"
#include "apps/cli/suggestion.h"

namespace paceline::apps {

namespace {

// Options of torchrun that are not available here; the message about them says so.
constexpr std::array<std::string_view, 9> kTorchrunOnly = {"--run-path",
                                                           "--start-method",
                                                           "--local-addr",
                                                           "--signals-to-handle",
                                                           "--logs-specs",
                                                           "--duplicate-stdout-filters",
                                                           "--duplicate-stderr-filters",
                                                           "--event-log-handler",
                                                           "--virtual-local-rank"};

std::vector<std::string> known_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// `argument` is the whole word, `name` the option in that word.
[[noreturn]] void refuse_unknown(const CLI::App& app, const std::string& argument,
                                 const std::string& name) {
  const bool starts_ranks = app.get_option_no_throw("--nproc-per-node") != nullptr;
  if (std::find(kTorchrunOnly.begin(), kTorchrunOnly.end(), name) != kTorchrunOnly.end()) {
    throw UsageError(
        fmt::format("{} is an option of torchrun that this version does not have", name));
  }
  if (name.starts_with("--")) {
    std::string advice = did_you_mean(name, known_names(app));
    if (advice.empty() && starts_ranks)
      advice = "; the program's own options follow its name: paceline run PROGRAM " + name;
    throw UsageError(fmt::format("unknown option {}{}", name, advice));
  }
  // A single letter is similar to every other one, so there is no suggestion for it. "-n" and "-np"
  // are options of mpirun; "-name" may lack a dash.
  const std::string typed = argument.substr(0, argument.find('='));
  if (starts_ranks && name == "-n") {
    throw UsageError(fmt::format("unknown option {}; did you mean --nproc-per-node?", typed));
  }
  throw UsageError(
      fmt::format("unknown option {}{}", typed,
                  typed.size() > 2 ? did_you_mean("-" + typed, known_names(app)) : ""));
}

struct Typed {
  std::string name;
  std::string value;
  bool has_value = false;
};

// Splits an argument: "--a_b=c" into {--a-b, c}, "-t3" into {-t, 3}.
Typed take_apart(const std::string& argument) {
  Typed typed;
  if (!argument.starts_with("--")) {
    typed.name = argument.substr(0, 2);
    typed.has_value = argument.size() > 2;
    if (typed.has_value) typed.value = argument.substr(argument[2] == '=' ? 3 : 2);
    return typed;
  }
  const auto equals = argument.find('=');
  typed.name = argument.substr(0, equals);
  std::replace(typed.name.begin(), typed.name.end(), '_', '-');
  typed.has_value = equals != std::string::npos;
  if (typed.has_value) typed.value = argument.substr(equals + 1);
  return typed;
}

bool variable_is_set(const CLI::Option& option) {
  const char* value =
      option.get_envname().empty() ? nullptr : std::getenv(option.get_envname().c_str());
  return value != nullptr && *value != '\0';
}

// Whether `value`, which `source` gives to a flag, means true.
bool flag_value(const std::string& source, std::string value) {
  static constexpr std::array<std::string_view, 4> kOn = {"1", "true", "yes", "on"};
  static constexpr std::array<std::string_view, 4> kOff = {"0", "false", "no", "off"};
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (std::find(kOn.begin(), kOn.end(), value) != kOn.end()) return true;
  if (std::find(kOff.begin(), kOff.end(), value) != kOff.end()) return false;
  throw UsageError(fmt::format("{}: '{}' is not 1, true, yes, on, 0, false, no or off", source,
                               launcher::neutralise(value)));
}

// Refuses an invalid value before CLI11 does, because CLI11's message does not name the variable.
void check_flag_variable(const CLI::Option& option) {
  if (option.get_items_expected_max() > 0 || !variable_is_set(option)) return;
  flag_value(option.get_envname(), std::getenv(option.get_envname().c_str()));
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

bool names(const std::string& option, const std::string& name) {
  return option == name || option.starts_with(name + "=");
}

}  // namespace

bool CommandLine::has(const std::string& name) const {
  return std::any_of(options.begin(), options.end(),
                     [&](const std::string& option) { return names(option, name); });
}

void CommandLine::add(const std::string& option) {
  const std::string name = option.substr(0, option.find('='));
  std::erase_if(options, [&](const std::string& other) { return names(other, name); });
  options.push_back(option);
}

std::string origin_of(const CLI::Option& option, const CommandLine& line) {
  const std::string name = "--" + option.get_lnames().front();
  if (line.has(name)) return "flag " + name;
  if (variable_is_set(option)) return "variable " + option.get_envname();
  for (const CommandLine::Default& one : line.defaults) {
    if (one.name == name) return one.source;
  }
  return "default";
}

std::string option_name(const std::string& argument) { return take_apart(argument).name; }

bool names_module(const std::string& argument) {
  return argument == "-m" || argument == "--module";
}

CommandLine split_command_line(const CLI::App& app, const std::vector<std::string>& arguments) {
  CommandLine line;
  const bool starts_ranks = app.get_option_no_throw("--nproc-per-node") != nullptr;
  auto argument = arguments.begin();
  for (; argument != arguments.end(); ++argument) {
    if (argument->size() < 2 || argument->front() != '-') break;
    if (*argument == "--") {
      ++argument;
      break;
    }
    Typed typed = take_apart(*argument);
    const CLI::Option* option = app.get_option_no_throw(typed.name);
    if (option == nullptr && starts_ranks && names_module(*argument)) break;
    if (option == nullptr) refuse_unknown(app, *argument, typed.name);
    const std::string name =
        option->get_lnames().empty() ? typed.name : "--" + option->get_lnames()[0];
    if (!takes_value(*option)) {
      const bool on = !typed.has_value || flag_value(typed.name, typed.value);
      if (name == "--help" && !on) continue;
      line.add(on ? name : name + "=false");
      continue;
    }
    if (!typed.has_value) {
      if (++argument == arguments.end())
        throw UsageError(fmt::format("{} needs a value", typed.name));
      typed.value = *argument;
    }
    if (typed.value.empty()) throw UsageError(fmt::format("{}: the value '' is empty", typed.name));
    line.add(name + "=" + typed.value);
  }
  line.program.assign(argument, arguments.end());
  return line;
}

CommandLine split_around_words(const CLI::App& app, const std::vector<std::string>& arguments) {
  CommandLine all;
  for (std::vector<std::string> rest = arguments; !rest.empty();) {
    CommandLine line = split_command_line(app, rest);
    for (const std::string& option : line.options) all.add(option);
    rest = std::move(line.program);
    if (rest.empty()) break;
    all.program.push_back(rest.front());
    rest.erase(rest.begin());
  }
  return all;
}

bool take_options(CLI::App& app, const CommandLine& line) {
  if (line.has("--help")) return false;
  for (const CLI::Option* option : app.get_options()) check_flag_variable(*option);
  std::vector<std::string> options = line.options;
  for (const CommandLine::Default& one : line.defaults) {
    const CLI::Option* option = app.get_option_no_throw(one.name);
    if (line.has(one.name) || variable_is_set(*option)) continue;
    if (!one.is_flag) options.push_back(one.name + "=" + one.value);
    if (one.is_flag && one.value == "true") options.push_back(one.name);
  }
  try {
    app.parse(std::vector<std::string>(options.rbegin(), options.rend()));
    return true;
  } catch (const CLI::CallForHelp&) {
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

}  // namespace paceline::apps
