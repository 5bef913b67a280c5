#include "apps/cli/option_table.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/cli/option_value.h"

namespace paceline::apps {

namespace {

// The variable for a flag: "PET_NPROC_PER_NODE" for "--nproc-per-node".
std::string variable_of(const std::string& flag) {
  std::string name = "PET_" + flag.substr(2);
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return name;
}

struct UsageFormatter : CLI::Formatter {
  explicit UsageFormatter(std::string text) : usage(std::move(text)) {}
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return usage;
  }
  const std::string usage;
};

std::string source_of(const Option& option) {
  if (option.origin.starts_with("variable ")) return option.declared->get_envname();
  if (option.origin.starts_with("file ")) return option.origin + ": " + option.name.substr(2);
  return option.name;
}

}  // namespace

std::string Option::value() const {
  if (target.print) return target.print();
  return !is_flag ? text : given() ? "yes" : "no";
}

OptionTarget bool_target(bool& value) {
  return {.read = [&value](const Option&) { value = true; },
          .print = [&value] { return value ? "yes" : "no"; }};
}

OptionTarget text_target(std::string& value, const char* unset) {
  return {.read = [&value](const Option& option) { value = option.text; },
          .print = [&value] { return value; },
          .unset = unset};
}

std::string range_text(long min, long max) {
  if (max == std::numeric_limits<long>::max()) return fmt::format("at least {}", min);
  return fmt::format("{} to {}", min, max);
}

OptionTarget seconds_target(std::chrono::nanoseconds& value, double max, double min) {
  const auto read = [&value, max, min](const Option& option) {
    value = seconds_number(option.source, option.text, max, "", min);
  };
  const auto print = [&value] {
    return fmt::format("{:g}", std::chrono::duration<double>(value).count());
  };
  return {.read = read, .print = print, .range = fmt::format("{} to {}", min, max)};
}

std::string allowed_words(const std::vector<std::string>& words, const std::string& typed) {
  if (words.size() > 4) return one_of(words, typed);
  return fmt::format("{} or {}", fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

void set_usage(CLI::App& app, const std::string& usage) {
  auto formatter = std::make_shared<UsageFormatter>(usage);
  formatter->column_width(34);
  app.formatter(formatter);
  app.get_help_ptr()->group("Help");
}

Option& OptionTable::add(const std::string& names, OptionTarget target, unsigned traits) {
  Option& option = options_.emplace_back();
  option.name = names.substr(names.find("--"));
  option.name.resize(std::min(option.name.find(','), option.name.size()));
  option.target = std::move(target);
  option.traits = traits;
  return option;
}

void OptionTable::show(Option& option) const {
  option.declared->group(group_);
  if (has_variables_ && (option.traits & kNoVariable) == 0)
    option.declared->envname(variable_of(option.name));
}

Option& OptionTable::value(const std::string& names, const char* type, const char* help,
                           OptionTarget target, unsigned traits) {
  Option& option = add(names, std::move(target), traits);
  const std::string& range = option.target.range;
  option.declared = app_.add_option(names, option.text,
                                    range.empty() ? help : fmt::format("{} ({})", help, range))
                        ->type_name(type);
  const std::string usual = option.value();
  if (!usual.empty()) option.declared->default_str(usual);
  show(option);
  return option;
}

Option& OptionTable::flag(const std::string& name, const char* help, OptionTarget target,
                          unsigned traits) {
  Option& option = add(name, std::move(target), traits);
  option.is_flag = true;
  option.declared = app_.add_flag(name)->description(help);
  show(option);
  return option;
}

void OptionTable::word(const char* name, const char* help) {
  app_.add_option_function<std::string>(
      name, [](const std::string&) {}, help);
}

bool OptionTable::take(const CommandLine& line) {
  if (!take_options(app_, line)) {
    fmt::print("{}", app_.help());
    return false;
  }
  for (Option& option : options_) {
    if (option.is_flag && option.declared->count() > 0 && option.declared->as<bool>()) {
      option.text = "true";
    }
    option.origin = origin_of(*option.declared, line);
    option.source = source_of(option);
  }
  return true;
}

void OptionTable::read() const {
  for (const Option& option : options_) {
    if (option.given() && option.target.read) option.target.read(option);
  }
}

std::optional<std::vector<std::string>> OptionTable::read_line(
    const std::vector<std::string>& arguments, std::size_t most_words) {
  CommandLine line = split_around_words(app_, arguments);
  if (!take(line)) return {};
  if (line.program.size() > most_words) {
    throw UsageError(fmt::format("'{}' was not expected", line.program[most_words]));
  }
  read();
  return std::move(line.program);
}

std::size_t OptionTable::index_of(const std::string& name) const {
  const auto found = std::find_if(options_.begin(), options_.end(),
                                  [&](const Option& option) { return option.name == name; });
  return static_cast<std::size_t>(found - options_.begin());
}

std::vector<std::string> OptionTable::passed_on() const {
  std::vector<std::string> arguments;
  for (const Option& option : options_) {
    if (!option.given() || (option.traits & kDecidedHere) != 0) continue;
    arguments.push_back(option.name + (option.is_flag ? "" : "=" + option.text));
  }
  return arguments;
}

}  // namespace paceline::apps
