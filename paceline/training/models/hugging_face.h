#pragma once

// Weights under the names and in the shapes of Hugging Face's transformers, both ways: what
// GPT2LMHeadModel and BertForMaskedLM save, with or without the prefixes "transformer." and
// "bert.". training/train/weights_file.h reads and writes the files.
//
// Every tensor of a file is used, or equals what the model makes of it, or is an error:
//
//   a weight of the model                            loaded; floating point of any width
//   a copy of a tied one (lm_head.weight,            must be equal; if only the copy is there, it
//     cls.predictions.decoder.*)                     is loaded
//   masks and position numbers (attn.bias,           must be those that the model computes
//     attn.masked_bias, position_ids)
//   BERT's other head (bert.pooler.*,                left out, with a warning that names them
//     cls.seq_relationship.*)
//   anything else                                    an error
//
// Thread safety: as the model's.

#include <cstdint>
#include <map>
#include <string>

#include "paceline/training/models/bert.h"
#include "paceline/training/models/gpt.h"

namespace paceline::models {

using TensorsByName = std::map<std::string, at::Tensor>;

struct HuggingFaceOptions {
  // Tokens that the file has; 0: as many as the model. A model may have more, such as 50,304 where
  // GPT-2 has 50,257, which do not divide by 2. Loading gives the others the mean of the file's
  // weights: together they never get more than their share of all tokens in the probabilities.
  // Saving leaves the others out.
  std::int64_t vocabulary = 0;
};

// Error(kInvalid) that lists what is missing, what has another shape or element type, what differs
// from the tensor that it is tied to, and what the model has no place for; nothing has been loaded
// then.
void load_hugging_face(Gpt& model, const TensorsByName& weights,
                       const HuggingFaceOptions& options = {});
void load_hugging_face(Bert& model, const TensorsByName& weights,
                       const HuggingFaceOptions& options = {});

// Copies. Error(kUnsupported) for a model that GPT-2 has no place for: rotary positions, fewer
// heads of keys and values.
TensorsByName to_hugging_face(Gpt& model, const HuggingFaceOptions& options = {});
TensorsByName to_hugging_face(Bert& model, const HuggingFaceOptions& options = {});

// The same for whole weights under the model's own names, as gather_dense() and gather_stages()
// return them, or some of them. Error(kInvalid) for a name that such a model does not have.
TensorsByName to_hugging_face(const GptOptions& model, const TensorsByName& weights,
                              const HuggingFaceOptions& options = {});
TensorsByName to_hugging_face(const BertOptions& model, const TensorsByName& weights,
                              const HuggingFaceOptions& options = {});

}  // namespace paceline::models
