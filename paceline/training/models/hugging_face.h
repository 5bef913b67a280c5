#pragma once

// Converts weights from and to the names and shapes of Hugging Face's transformers, as
// GPT2LMHeadModel and BertForMaskedLM save them, with or without the prefixes "transformer." and
// "bert.". training/train/checkpoints/weights_file.h reads and writes the files.
//
// Every tensor of a file is used, must equal what the model computes itself, or is an error:
//
//   a weight of the model                            loaded; floating point of any width
//   a copy of a tied weight (lm_head.weight,         must be equal; if the file has only the copy,
//     cls.predictions.decoder.*)                     it is loaded
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

struct HuggingFaceOptions {
  // Tokens of the file; 0: as many as the model has. A model may have more, such as 50,304 instead
  // of GPT-2's 50,257, which is odd. Loading gives the additional tokens the mean of the file's
  // weights, so that they are never more probable than the file's tokens on average; saving leaves
  // them out.
  std::int64_t vocabulary = 0;
};

// Loads the weights into the model. Error(kInvalid) that lists every tensor that is missing, has
// another shape or element type, differs from the tensor that it is tied to, or has no place in the
// model; nothing has been loaded then.
void load_hugging_face(Gpt& model, const TensorsByName& weights,
                       const HuggingFaceOptions& options = {});
void load_hugging_face(Bert& model, const TensorsByName& weights,
                       const HuggingFaceOptions& options = {});

// Returns copies. Error(kUnsupported) for a model with rotary positions or fewer heads of keys and
// values, which GPT-2 has no place for.
TensorsByName to_hugging_face(Gpt& model, const HuggingFaceOptions& options = {});
TensorsByName to_hugging_face(Bert& model, const HuggingFaceOptions& options = {});

// As above, for whole weights under the model's own names, as gather_dense() and gather_stages()
// return them, or some of them. Error(kInvalid) for a name that such a model does not have.
TensorsByName to_hugging_face(const GptOptions& model, const TensorsByName& weights,
                              const HuggingFaceOptions& options = {});
TensorsByName to_hugging_face(const BertOptions& model, const TensorsByName& weights,
                              const HuggingFaceOptions& options = {});

}  // namespace paceline::models
