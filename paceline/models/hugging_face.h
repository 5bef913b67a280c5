#pragma once

// Weights under the names and in the shapes of Hugging Face's transformers, both ways: what
// GPT2LMHeadModel and BertForMaskedLM save, with or without the prefixes "transformer." and
// "bert.". checkpoint/safetensors.h reads and writes the files.

#include <map>
#include <string>

#include "paceline/models/bert.h"
#include "paceline/models/gpt.h"

namespace paceline::models {

using TensorsByName = std::map<std::string, at::Tensor>;

// Error(kInvalid) that lists what is missing, what has another shape, and what the model has no
// place for; nothing has been loaded then. Masks and position numbers, which some files have, are
// not weights, and neither is a copy of the tied last layer.
void load_hugging_face(Gpt& model, const TensorsByName& weights);
void load_hugging_face(Bert& model, const TensorsByName& weights);

// Copies. Error(kUnsupported) for a model that GPT-2 has no place for: rotary positions, fewer
// heads of keys and values.
TensorsByName to_hugging_face(Gpt& model);
TensorsByName to_hugging_face(Bert& model);

}  // namespace paceline::models
