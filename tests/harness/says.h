#pragma once

// EXPECT_THAT(text, Says("run.first_failure", 1, "exit code 3")): checks that the text contains the
// message of that name in the tables in messages/. Each {} of the message stands for the next
// argument. When the arguments are used up, {} stands for any text up to the end of the line. An
// unknown name is a failure.

#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <gmock/gmock.h>

namespace paceline::harness {

struct Message {
  std::string_view name;
  std::string_view text;
};

// The message with the arguments filled in, cut into parts at the {} that are left. Throws
// std::invalid_argument if the tables lack the name, or if there are more arguments than {}.
std::vector<std::string> message_parts(std::string_view name, std::vector<std::string> arguments);
// Whether the parts occur in this order without a line end between two parts. A part may contain
// line ends.
bool contains_parts(std::string_view text, const std::vector<std::string>& parts);

class SaysMatcher {
 public:
  using is_gtest_matcher = void;

  SaysMatcher(std::string name, std::vector<std::string> arguments)
      : name_(std::move(name)), parts_(message_parts(name_, std::move(arguments))) {}

  bool MatchAndExplain(std::string_view text, std::ostream* /*listener*/) const {
    return contains_parts(text, parts_);
  }
  void DescribeTo(std::ostream* out) const { describe("contains", out); }
  void DescribeNegationTo(std::ostream* out) const { describe("does not contain", out); }

 private:
  void describe(const char* verb, std::ostream* out) const {
    *out << verb << " \"" << fmt::format("{}", fmt::join(parts_, "{}")) << "\" (message " << name_
         << ")";
  }

  std::string name_;
  std::vector<std::string> parts_;
};

template <class... Arguments>
SaysMatcher Says(std::string name, const Arguments&... arguments) {
  return {std::move(name), {fmt::format("{}", arguments)...}};
}

}  // namespace paceline::harness
