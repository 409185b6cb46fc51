// protobuf.ts - decodes answers of the Kubernetes API in Protocol Buffers, as far as weft uses them: listings of nodes, and
// errors. Does no I/O.
//
// An API server needs less CPU time to write a listing in Protocol Buffers than in JSON, and weftd needs less CPU time to
// read the listing, because weftd skips most of a node. Kubernetes names the fields in generated.proto: of
// apimachinery/pkg/runtime (Unknown), apimachinery/pkg/apis/meta/v1 (ListMeta, ObjectMeta, Status, Time) and api/core/v1
// (NodeList, Node, NodeSpec).

import { WeftError } from '../../base/errors.ts'

/** The content type of Protocol Buffers in the Kubernetes API. */
export const PROTOBUF = 'application/vnd.kubernetes.protobuf'
/** The bytes with which each object begins (apimachinery/pkg/runtime/serializer/protobuf, protoEncodingPrefix). */
const MAGIC = Buffer.from('k8s\0')
/** The types of a field's value (Protocol Buffers, "Encoding"). */
const WIRE = { varint: 0, fixed64: 1, bytes: 2, fixed32: 5 } as const

/** A decoded object has the members of the object's JSON. */
type Json = Record<string, unknown>

const broken = (why: string): WeftError =>
  new WeftError('STORE_UNAVAILABLE', `the Kubernetes API answers with something that is not Protocol Buffers: ${why}`)

/** Reads a message (a sequence of fields) from untrusted bytes. */
class Message {
  readonly #bytes: Buffer
  #at: number
  readonly #end: number
  /** The start and the end of the value of the field that `each` reads, if the value is a message or a text. */
  #from = 0
  #to = 0
  /** The value of the field that `each` reads, if the value is a number. */
  #number = 0

  constructor(bytes: Buffer, from = 0, to = bytes.length) {
    this.#bytes = bytes
    this.#at = from
    this.#end = to
  }

  /**
   * Calls `onField` for each field. A value of another type than the caller expects counts as empty text, as a message
   * without fields, or as 0.
   */
  each(onField: (field: number, value: Message) => void): void {
    while (this.#at < this.#end) {
      const tag = this.#varint()
      const field = Math.floor(tag / 8)
      const type = tag % 8
      this.#from = this.#to = this.#number = 0
      if (type === WIRE.varint) this.#number = this.#varint()
      else if (type === WIRE.bytes) {
        const length = this.#varint()
        this.#skip(length)
        this.#to = this.#at
        this.#from = this.#at - length
      } else if (type === WIRE.fixed64) this.#skip(8)
      else if (type === WIRE.fixed32) this.#skip(4)
      else throw broken(`a field has the type ${type}`)
      onField(field, this)
    }
  }

  text(): string {
    return this.#bytes.toString('utf8', this.#from, this.#to)
  }

  number(): number {
    return this.#number
  }

  message(): Message {
    return new Message(this.#bytes, this.#from, this.#to)
  }

  /** Reads a number. A number of more than 53 bits is not exact, but weft uses no such number. */
  #varint(): number {
    let value = 0
    let factor = 1
    for (let count = 0; count < 10; count++) {
      this.#skip(1)
      const byte = this.#bytes[this.#at - 1] as number
      value += (byte & 127) * factor
      if (byte < 128) return value
      factor *= 128
    }
    throw broken('a number is too long')
  }

  #skip(length: number): void {
    if (length > this.#end - this.#at) throw broken('a message ends too early')
    this.#at += length
  }
}

/** Returns the message inside the envelope `Unknown` (field 2), which has the kind of the object too. */
function objectOf(bytes: Buffer): Message {
  if (!bytes.subarray(0, MAGIC.length).equals(MAGIC)) throw broken('the first bytes are wrong')
  let object: Message | undefined
  new Message(bytes, MAGIC.length).each((field, value) => {
    if (field === 2) object = value.message()
  })
  if (!object) throw broken('it contains no object')
  return object
}

/** Decodes a NodeList. Throws WeftError STORE_UNAVAILABLE if the bytes are not a valid message. */
export function decodeNodeList(bytes: Buffer): Json {
  const metadata: Json = {}
  const items: Json[] = []
  objectOf(bytes).each((field, value) => {
    if (field === 2) items.push(nodeOf(value.message()))
    if (field !== 1) return
    value.message().each((of, part) => {
      if (of === 2) metadata['resourceVersion'] = part.text()
      if (of === 3) metadata['continue'] = part.text()
    })
  })
  return { metadata, items }
}

function nodeOf(node: Message): Json {
  let metadata: Json = {}
  const spec: Json = {}
  const podCIDRs: string[] = []
  node.each((field, value) => {
    if (field === 1) metadata = metadataOf(value.message())
    if (field !== 2) return
    value.message().each((of, part) => {
      if (of === 1) spec['podCIDR'] = part.text()
      if (of === 7) podCIDRs.push(part.text())
    })
  })
  return { metadata, spec: { ...spec, podCIDRs } }
}

const METADATA: Readonly<Record<number, string>> = { 1: 'name', 5: 'uid', 6: 'resourceVersion' }

function metadataOf(message: Message): Json {
  const metadata: Json = {}
  const annotations: (readonly [string, string])[] = []
  message.each((field, value) => {
    const name = METADATA[field]
    if (name !== undefined) metadata[name] = value.text()
    else if (field === 8) metadata['creationTimestamp'] = timeOf(value.message())
    else if (field === 12) annotations.push(entryOf(value.message()))
  })
  return { ...metadata, annotations: Object.fromEntries(annotations) }
}

/** Returns a key and its value of a map of texts. */
function entryOf(message: Message): readonly [string, string] {
  let [key, text] = ['', '']
  message.each((field, value) => {
    if (field === 1) key = value.text()
    if (field === 2) text = value.text()
  })
  return [key, text]
}

/** Returns a time as in JSON. The API server stores the time when a node was created without fractions of a second. */
function timeOf(message: Message): string | undefined {
  let ms = NaN
  message.each((field, value) => {
    if (field === 1) ms = value.number() * 1000
  })
  const time = new Date(ms)
  return Number.isNaN(time.getTime()) ? undefined : time.toISOString().replace('.000Z', 'Z')
}

/** Returns the explanation in an error of the API server (Status); empty if the bytes are not a valid Status. */
export function explanationOf(bytes: Buffer): string {
  let message = ''
  try {
    objectOf(bytes).each((field, value) => {
      if (field === 3) message = value.text()
    })
  } catch {
    return ''
  }
  return message
}
