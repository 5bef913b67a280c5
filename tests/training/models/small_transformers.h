#pragma once

// A GPT and a BERT of a few thousand parameters.

#include "paceline/training/models/bert.h"
#include "paceline/training/models/gpt.h"

namespace paceline::models {

inline GptOptions small_gpt() {
  return {.vocabulary = 23, .context = 16, .layers = 2, .width = 24, .heads = 4, .dropout = 0};
}

inline BertOptions small_bert() {
  return {.vocabulary = 23,
          .context = 16,
          .layers = 2,
          .width = 24,
          .heads = 4,
          .feed_forward = 40,
          .dropout = 0};
}

}  // namespace paceline::models
