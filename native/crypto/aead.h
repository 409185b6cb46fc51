// aead.h - ChaCha20-Poly1305 (RFC 8439) by the OpenSSL that Node brings along, for packets: one context a lane, in
// which the nonce alone is set anew while packets of one key follow each other.
//
// It is found when an engine starts (library.h); a Node without the cipher (FIPS) before the first packet, by a known
// answer.
//
// A packet is sealed where it lies, in one piece. OpenSSL's vectorised code takes whole blocks: two pieces cost 200 ns
// more than one, and to copy a payload of 1,372 bytes into one costs less than can be told (1.0 us to seal 1,424 bytes,
// 0.45 us for 64, on a Zen 4 at 2 GHz).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

/// 32 bytes that are wiped when they are not used any more.
class Key {
 public:
  static constexpr size_t kBytes = 32;
  Key() = default;
  explicit Key(const uint8_t* bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kBytes> bytes_{};
};

/// One direction of one lane: it seals, or it opens. Used by one thread at a time.
class Aead {
 public:
  static constexpr size_t kTagBytes = 16;
  enum class Way : bool { kOpen, kSeal };

  /// Null where this process has no OpenSSL, or OpenSSL not the cipher, or the answer to a known question is wrong.
  static std::unique_ptr<Aead> create(Way way);
  ~Aead();
  Aead(const Aead&) = delete;
  Aead& operator=(const Aead&) = delete;

  /// The number of the key in use, 0 when there is none.
  uint64_t key_number() const { return key_number_; }
  /// Uses a key from now on. A number belongs to one key for as long as the process lives.
  void use(uint64_t number, const Key& key);
  /// Wipes the key in use, and all that OpenSSL has made of it. Memory is freed and taken by that: not for each packet.
  void forget();

  /// Seals `bytes` in place and writes the tag behind them, where there are kTagBytes of room. The nonce is the
  /// counter, little-endian, behind four zeroes; nothing else is authenticated. False when OpenSSL refused, and then
  /// the bytes are nothing.
  bool seal(uint64_t counter, std::span<uint8_t> bytes);
  /// Opens in place what seal() made of `bytes`, with its tag behind them; false when it is not that, and then the
  /// bytes are nothing.
  bool open(uint64_t counter, std::span<uint8_t> bytes);

 private:
  struct Library;
  struct Context;
  explicit Aead(const Library& library, Way way);
  bool begin();
  bool set_nonce(uint64_t counter);
  bool knows_answer();

  std::unique_ptr<const Library> library_;
  Way way_;
  Context* context_ = nullptr;
  uint64_t key_number_ = 0;
};

}  // namespace weft
