// wireguard.h - WireGuard's data messages: 16 bytes of header, the encrypted packet, 16 bytes of authentication tag.
//
// The format follows WireGuard's white paper (section 5.4.6) and works with Linux, wireguard-go and other
// implementations. Packets are not padded: all implementations accept that, and packets keep the lengths that path MTU
// discovery found. The session (core/session.h) has the keys, and decides when they may be used.
//
// Only two kinds of handshake messages go to JavaScript (core/mailbox.h): initiations with a correct mac1, whose
// senders know this host's public key (section 5.4.4), and answers with the index of this host's last handshake
// message.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "../core/encapsulation.h"
#include "../core/sessions.h"
#include "../crypto/aead.h"
#include "../crypto/mac.h"

namespace weft {

class Wireguard {
 public:
  static constexpr std::string_view kName = "wireguard";
  static constexpr size_t kHeaderBytes = 16;
  static constexpr size_t kTrailerBytes = Aead::kTagBytes;
  static constexpr bool kRoutes = false;
  static constexpr bool kCopiesEcn = true;
  /// The interval in ms at which the loop threads check timers. The protocol's shortest timer is five seconds, so 500
  /// ms are exact enough.
  static constexpr int kTickMs = 500;

  /// The offsets of four values in `own.encap`: the secret that is mixed into session indices (index_code.h), the
  /// keepalive interval in milliseconds (0 for no keepalives), the key of mac1 (derived from this host's public key),
  /// and the key that permutes session indices. Numbers are little-endian.
  static constexpr size_t kSecret = 0, kKeepalive = 4, kMacKey = 8, kIndexKey = 40;

  static IndexCode indices_of(const OwnEnd& own) {
    return {load_le32(&own.encap[kSecret]), std::span(own.encap).subspan<kIndexKey, IndexCode::kKeyBytes>()};
  }

  /// The caller must have checked that Aead::create() succeeds. If Mac::create() fails, this class cannot check mac1,
  /// so it also passes initiations with a wrong mac1 to JavaScript.
  Wireguard(const OwnEnd& own, Sessions& sessions)
      : sessions_(&sessions),
        keepalive_ms_(load_le32(&own.encap[kKeepalive])),
        sealing_(Aead::create(Aead::Way::kSeal)),
        opening_(Aead::create(Aead::Way::kOpen)),
        mac_(Mac::create(std::span(own.encap).subspan<kMacKey, Mac::kKeyBytes>())) {}

  /// Notes that this host sends a handshake message, so that the peer's answer is accepted. Must be called before
  /// JavaScript sends the message.
  static void sends(Sessions& sessions, std::span<const uint8_t> message) {
    const Type type = type_of(message);
    if (type != kInitiation && type != kResponse) return;
    const uint32_t index = load_le32(&message[4]);
    Session* session = sessions.of(sessions.number_of_index(index));
    if (!session) return;
    if (type == kInitiation) session->expect(Session::Expected::kResponse, index);
    session->expect(Session::Expected::kCookie, index);
  }

  void begin_turn(int64_t now_ms) { now_ms_ = now_ms; }

  Sealed seal(const Endpoint& peer, const Packet&, std::span<uint8_t> bytes, std::span<uint8_t>) {
    const uint32_t number = Sessions::number_of(peer.encap.data());
    Session* session = sessions_->of(number);
    if (!session) return Sealed::drop(k_tx_drop_no_session);
    const Session::Grant grant = begin_seal(number, *session, true);
    if (grant.is_granted) return finish(grant, bytes) ? Sealed::datagram() : Sealed::drop(k_tx_drop_no_session);
    StagedBytes share;
    if (!sessions_->take_staged_bytes(bytes.size() + kTrailerBytes, share)) return Sealed::drop(k_tx_drop_no_session);
    std::vector<uint8_t> copy;
    copy.reserve(bytes.size() + kTrailerBytes);
    copy.assign(bytes.begin(), bytes.end());
    copy.resize(bytes.size() + kTrailerBytes);
    const bool kept = session->stage({std::move(copy), now_ms_, peer.slot, std::move(share)});
    // Another thread may have installed keys and sent the waiting packets since begin_seal(), so the packet that
    // stage() kept must be sent now.
    if (kept && session->may_seal(now_ms_)) sessions_->make_ready(number);
    return kept ? Sealed::kept() : Sealed::drop(k_tx_drop_no_session);
  }

  Opened open(Message& message) {
    const std::span<uint8_t> datagram = message.take();
    if (datagram.size() < kLeastBytes) return Opened::drop(k_rx_drop_malformed);
    const Type type = type_of(datagram);
    if (type == kNone) return Opened::drop(k_rx_drop_malformed);
    // Drop a handshake message from an address inside the cluster's network. JavaScript would answer to that address,
    // and the answer would go through the tunnel.
    if (type != kData && message.is_from_inside) return Opened::drop(k_rx_drop_handshake);
    if (type != kData) return Opened::control_message(datagram);
    const uint32_t index = load_le32(&datagram[4]), number = sessions_->number_of_index(index);
    const uint64_t counter = load_le64(&datagram[8]);
    Session* session = sessions_->of(number);
    std::optional<Counter> refused = k_rx_drop_no_session;
    if (session) refused = session->begin_open(*opening_, index, counter, now_ms_);
    if (!refused) opened_ms_ = now_ms_;
    // The peer may use keys that this host lost, for example in a restart. JavaScript gets the header and begins a
    // handshake.
    if (refused == k_rx_drop_no_session) return Opened::drop_encrypted(*refused, datagram.first(kHeaderBytes));
    if (refused) return Opened::drop_encrypted(*refused);
    const std::span<uint8_t> packet = datagram.subspan(kHeaderBytes, datagram.size() - kHeaderBytes - kTrailerBytes);
    if (!opening_->open(counter, packet)) return Opened::drop_encrypted(k_rx_drop_not_authentic);
    // If the sender's address is inside the cluster's network, the session keeps its present address, because datagrams
    // to the new address would go through the tunnel.
    const SocketAddress from = message.is_from_inside ? session->to() : *message.sender;
    const Session::Accepted accepted = session->accept(opening_->key_number(), counter, !packet.empty(), from, now_ms_);
    if (accepted.reason) return Opened::drop(*accepted.reason);
    if (accepted.wants_handshake) sessions_->mailbox().want(number);
    // After a confirmation JavaScript sets the peer's address to the source of the handshake, which is older than the
    // source of this packet. So call moved() after confirm().
    if (accepted.is_confirmed) {
      sessions_->mailbox().confirm(number);
      sessions_->make_ready(number);
    }
    if (accepted.has_moved) sessions_->mailbox().moved(number, *message.sender);
    return packet.empty() ? Opened::nothing() : Opened::packet(packet, number);
  }

  /// Passes a message to JavaScript, or returns the counter of the reason to drop the message. Passes data for an
  /// unknown session only if it comes from a peer, because data of other senders would take the space of handshake
  /// messages.
  std::optional<Counter> deliver(const SocketAddress& from, std::span<const uint8_t> message, bool is_from_peer) {
    using enum Mailbox::Origin;
    const auto post = [&](Mailbox::Origin origin, uint32_t session = 0) -> std::optional<Counter> {
      if (sessions_->mailbox().post(from, message, origin, session)) return {};
      return k_rx_drop_handshake;
    };
    const uint32_t type = message[0];
    if (type == kData) return is_from_peer ? post(kPeerWithoutSession) : k_rx_drop_handshake;
    if (type != kInitiation) {
      const uint32_t index = load_le32(&message[type == kResponse ? 8 : 4]), number = sessions_->number_of_index(index);
      const Session* session = sessions_->of(number);
      const auto answer = type == kResponse ? Session::Expected::kResponse : Session::Expected::kCookie;
      // Only a host that has received this host's last handshake message knows the index in that message. So a check of
      // the MAC would prove nothing more.
      return session && session->expects(answer, index) ? post(kAsked, number) : k_rx_drop_handshake;
    }
    if (!sessions_->may_look(is_from_peer, now_ms_)) return k_rx_drop_handshake;
    const size_t before = message.size() - 2 * Mac::kBytes;
    if (mac_ && !mac_->is_of(message.first(before), message.subspan(before).first<Mac::kBytes>()))
      return k_rx_drop_wrong_key;
    return post(is_from_peer ? kPeer : kOther);
  }

  /// Wipes this thread's copies of keys that this thread has not used for kRestMs. The session may already have wiped
  /// its own copies.
  void rest(int64_t now_ms) {
    if (now_ms - sealed_ms_ >= kRestMs && sealing_->key_number() != 0) sealing_->forget();
    if (now_ms - opened_ms_ >= kRestMs && opening_->key_number() != 0) opening_->forget();
  }

  template <typename Out>
  bool tick(int64_t now_ms, Out& out) {
    begin_turn(now_ms);
    for (const uint32_t number : sessions_->take_ready()) send_waiting(number, out);
    if (now_ms < next_look_ms_) return false;
    next_look_ms_ = now_ms + kTickMs;
    if (!sessions_->begin_look(now_ms, kTickMs)) return true;
    sessions_->for_each([&](uint32_t number, Session& session) {
      const Session::Due due = session.look(keepalive_ms_, now_ms);
      if (due.wants_handshake) sessions_->mailbox().want(number);
      if (due.keepalive) send_keepalive(number, session, out);
      if (due.expired > 0) out.drop(k_tx_drop_no_session, due.expired);
    });
    return true;
  }

 private:
  /// The types of WireGuard messages: the first byte, which three zero bytes follow. kNone stands for an invalid
  /// message.
  enum Type : uint32_t { kNone, kInitiation, kResponse, kCookieReply, kData };
  static constexpr size_t kLeastBytes = kHeaderBytes + kTrailerBytes;
  /// A thread wipes its copy of a key that it did not use for kRestMs milliseconds. This time equals WireGuard's
  /// interval for passive keepalives, so the key of a session in use stays.
  static constexpr int64_t kRestMs = SessionLimits::kKeepaliveMs;

  static Type type_of(std::span<const uint8_t> message) {
    constexpr size_t kBytes[] = {0, 148, 92, 64};
    const uint32_t type = message.size() < kLeastBytes ? kNone : load_le32(message.data());
    if (type == kData) return kData;
    return type < kData && message.size() == kBytes[type] ? static_cast<Type>(type) : kNone;
  }

  /// Takes the session's next packet counter, and requests a handshake from JavaScript if the session needs one.
  Session::Grant begin_seal(uint32_t number, Session& session, bool is_data) {
    const Session::Grant grant = session.begin_seal(*sealing_, is_data, now_ms_);
    if (grant.is_granted) sealed_ms_ = now_ms_;
    if (grant.wants_handshake) sessions_->mailbox().want(number);
    return grant;
  }

  /// Writes the header and encrypts the packet. `bytes` has space for the header before the packet, and space for the
  /// tag after the packet.
  bool finish(const Session::Grant& grant, std::span<uint8_t> bytes) {
    store_le32(&bytes[0], kData);
    store_le32(&bytes[4], grant.peer_index);
    store_le64(&bytes[8], grant.counter);
    return sealing_->seal(grant.counter, bytes.subspan(kHeaderBytes));
  }

  /// Sends the packets that waited for keys. If no packets waited, sends a keepalive, from which the responder of the
  /// handshake learns that it may use its new keys.
  template <typename Out>
  void send_waiting(uint32_t number, Out& out) {
    Session* session = sessions_->of(number);
    if (!session) return;
    std::vector<Staged> waiting = session->take_staged();
    if (waiting.empty()) return send_keepalive(number, *session, out);
    for (Staged& staged : waiting) {
      const std::span<uint8_t> whole(staged.datagram), bytes = whole.first(whole.size() - kTrailerBytes);
      const Session::Grant grant = begin_seal(number, *session, true);
      if (!grant.is_granted || !finish(grant, bytes)) {
        out.drop(k_tx_drop_no_session, 1);
      } else {
        out.send(session->to(), whole, bytes.size() - kHeaderBytes, staged.slot);
      }
    }
  }

  template <typename Out>
  void send_keepalive(uint32_t number, Session& session, Out& out) {
    uint8_t datagram[kHeaderBytes + kTrailerBytes];
    const Session::Grant grant = begin_seal(number, session, false);
    if (grant.is_granted && finish(grant, {datagram, kHeaderBytes})) out.send(session.to(), datagram, 0, 0);
  }

  Sessions* sessions_;
  int64_t keepalive_ms_;
  std::unique_ptr<Aead> sealing_, opening_;
  std::unique_ptr<Mac> mac_;               // null if this process has no BLAKE2s
  int64_t now_ms_ = 0;                     // when the current batch began, in ms of session_ms()
  int64_t sealed_ms_ = 0, opened_ms_ = 0;  // when this thread last used a key to encrypt and to decrypt
  int64_t next_look_ms_ = 0;
};
static_assert(Encapsulation<Wireguard> && HasSessions<Wireguard>);

}  // namespace weft
