// encapsulation.ts - how an inner packet stands in a datagram, by the name that a backend asks for.
//
// Datagrams are sealed and opened here for the dgram engine, which knows flannel's udp alone; the native engine has all
// encapsulations, by the same names, in native/encap/all.h.

export type EncapsulationName = 'udp' | 'vxlan' | 'wireguard'

export interface Encapsulation {
  /** The bytes before each packet, and behind it. */
  readonly headerBytes: number
  readonly trailerBytes: number
  /** The datagram for a packet: the packet itself when nothing stands around it. */
  readonly seal: (packet: Buffer) => Buffer
  /** The packet in a datagram, where it lies; undefined when there is none. */
  readonly open: (datagram: Buffer) => Buffer | undefined
}

export const ENCAPSULATIONS = {
  /** flannel's udp: the packet is all that a datagram holds (pkg/backend/udp/proxy_amd64.c). */
  udp: { headerBytes: 0, trailerBytes: 0, seal: (packet) => packet, open: (datagram) => datagram },
} satisfies Readonly<Partial<Record<EncapsulationName, Encapsulation>>>
