#pragma once

// The words into which GPT-2 cuts a text before it encodes each of them (BpeTokenizer).
//
// Thread safety: a pure function.

#include <string_view>
#include <vector>

namespace paceline::text {

// The words in order; joined they are the text.
std::vector<std::string_view> split_for_gpt2(std::string_view text);

}  // namespace paceline::text
