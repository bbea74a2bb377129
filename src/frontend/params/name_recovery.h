// Parameters of files without metadata, found one initializer after another. Private to the params
// room.
#pragma once

#include "names.h"

namespace piper::onnx_import {

class NameBasedRecovery {
 public:
  NameBasedRecovery(const OnnxModel& model, const std::vector<std::string>& scopes,
                    const PriorKnowledge& prior, std::map<std::string, std::string> copies)
      : model_(model),
        prior_(prior),
        copies_(std::move(copies)),
        readers_(model, scopes),
        modules_(model, scopes),
        sources_(model, prior),
        exported_(model.producer.starts_with("pytorch")) {}
  Result<Claims> run();
  // Returns scopes by node, as the modules are called.
  std::vector<std::string> paths() const;

 private:
  struct Named {  // an anonymous tensor whose readers tell what it is
    int initializer;
    Place place;
    Role role;
  };
  const OnnxTensor& tensor(int i) const { return model_.initializers[static_cast<size_t>(i)]; }
  const OnnxNode& node(const Place& place) const { return model_.nodes[place.node]; }
  void add(int initializer, const Place& place, std::string name, TensorType type,
           Derivation derivation, std::string evidence);
  void claim(int initializer, const std::vector<Place>& places);
  void claim_kept(int initializer, const std::vector<Place>& places);
  bool may_be_fused(const Place& place) const;
  bool is_number(const OnnxTensor& tensor) const;
  void claim_anonymous(int initializer, const std::vector<Place>& places);
  bool claim_tied(int initializer, const std::vector<Place>& places,
                  const std::optional<Role>& role);
  bool is_mixed_with(const Place& place, const std::string& name) const;
  bool claim_computed(int initializer, const std::vector<Place>& places, bool lost,
                      std::string& why);
  void claim_named();
  bool name_again(Named& named);
  bool tell_norm(Named& named, int64_t steps);
  void leave_named();
  void leave_shared();
  void leave(int initializer, const Place& place, std::string_view why);
  void doubt(int initializer, std::string why);
  std::string doubt_of(int initializer, const std::vector<Place>& places) const;
  std::string merged_with(int initializer, const std::vector<Place>& places) const;
  void report_metadata();
  std::string other_name(int initializer, const Place& place) const;
  void alias(const std::string& other, const std::string& name);
  void report_padding();
  void report_copies();
  void report_scopes();

  const OnnxModel& model_;
  const PriorKnowledge& prior_;
  const std::map<std::string, std::string> copies_;
  const Readers readers_;
  const ModulePaths modules_;
  const Sources sources_;
  const bool exported_;  // by PyTorch: what kept a name is a parameter or a buffer
  std::vector<Named> named_;
  Claims claims_;
};

}  // namespace piper::onnx_import
