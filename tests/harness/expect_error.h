#pragma once

// expect_error(code, words, body): checks that `body` throws an Error with this code, and that its
// message contains every word.

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"

namespace paceline {

template <class Body>
void expect_error(ErrorCode code, const std::vector<std::string>& words, Body body) {
  try {
    body();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(to_string(error.code()), to_string(code)) << error.what();
    for (const auto& word : words) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos)
          << "'" << word << "' is not in: " << error.what();
    }
  }
}

}  // namespace paceline
