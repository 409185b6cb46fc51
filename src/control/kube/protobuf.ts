// protobuf.ts - decodes answers of the Kubernetes API in Protocol Buffers, as far as weft uses them: listings of nodes, and
// errors. Does no I/O.
//
// An API server needs less CPU time to write a listing in Protocol Buffers than in JSON, and weftd needs less CPU time to
// read the listing, because weftd skips most of a node. Kubernetes names the fields in generated.proto: of
// apimachinery/pkg/runtime (Unknown), apimachinery/pkg/apis/meta/v1 (ListMeta, ObjectMeta, Status, Time) and api/core/v1
// (NodeList, Node, NodeSpec).

import protobuf from 'protobufjs/minimal.js'
import { messageOf, WeftError } from '../../base/errors.ts'

/** The content type of Protocol Buffers in the Kubernetes API. */
export const PROTOBUF = 'application/vnd.kubernetes.protobuf'
/** The bytes with which each object begins (apimachinery/pkg/runtime/serializer/protobuf, protoEncodingPrefix). */
const MAGIC = Buffer.from('k8s\0')
/** The types of a field's value (Protocol Buffers, "Encoding"). */
const WIRE = { varint: 0, bytes: 2 } as const

/** A decoded object has the members of the object's JSON. */
type Json = Record<string, unknown>
/** The value of a field: a number, or the bytes of a text or of a message. */
type Value = number | Uint8Array

const broken = (why: string, cause?: unknown): WeftError =>
  new WeftError('STORE_UNAVAILABLE', `the Kubernetes API answers with something that is not Protocol Buffers: ${why}`, {
    cause,
  })

/** Calls `onField` for each field of a message whose value is a number, a text or a message. */
function eachField(message: Value, onField: (field: number, value: Value) => void): void {
  const reader = protobuf.Reader.create(bytesOf(message))
  while (reader.pos < reader.len) {
    const tag = reader.uint32()
    const [field, type] = [tag >>> 3, tag & 7]
    // Number converts both results of int64: a number, and a Long if the package long is there.
    if (type === WIRE.varint) onField(field, Number(reader.int64()))
    else if (type === WIRE.bytes) onField(field, reader.bytes())
    else reader.skipType(type)
  }
}

function bytesOf(value: Value): Uint8Array {
  if (typeof value === 'number') throw broken('a field has a number in place of a text or a message')
  return value
}

function textOf(value: Value): string {
  const { buffer, byteOffset, length } = bytesOf(value)
  return Buffer.from(buffer, byteOffset, length).toString('utf8')
}

/**
 * Decodes an object with `onField`, which gets the fields of the object. The bytes have an envelope, `Unknown`, whose
 * field 2 is the object. Throws WeftError STORE_UNAVAILABLE if the bytes are not a valid message.
 */
function decode(bytes: Buffer, onField: (field: number, value: Value) => void): void {
  if (!bytes.subarray(0, MAGIC.length).equals(MAGIC)) throw broken('the first bytes are wrong')
  let object: Value | undefined
  try {
    eachField(bytes.subarray(MAGIC.length), (field, value) => {
      if (field === 2) object = value
    })
    if (object !== undefined) eachField(object, onField)
  } catch (error) {
    throw error instanceof WeftError ? error : broken(messageOf(error), error)
  }
  if (object === undefined) throw broken('it contains no object')
}

/** Decodes a NodeList. Throws WeftError STORE_UNAVAILABLE if the bytes are not a valid message. */
export function decodeNodeList(bytes: Buffer): Json {
  const metadata: Json = {}
  const items: Json[] = []
  decode(bytes, (field, value) => {
    if (field === 2) items.push(nodeOf(value))
    if (field !== 1) return
    eachField(value, (of, part) => {
      if (of === 2) metadata['resourceVersion'] = textOf(part)
      if (of === 3) metadata['continue'] = textOf(part)
    })
  })
  return { metadata, items }
}

function nodeOf(node: Value): Json {
  let metadata: Json = {}
  const spec: Json = {}
  const podCIDRs: string[] = []
  eachField(node, (field, value) => {
    if (field === 1) metadata = metadataOf(value)
    if (field !== 2) return
    eachField(value, (of, part) => {
      if (of === 1) spec['podCIDR'] = textOf(part)
      if (of === 7) podCIDRs.push(textOf(part))
    })
  })
  return { metadata, spec: { ...spec, podCIDRs } }
}

const METADATA: Readonly<Record<number, string>> = { 1: 'name', 5: 'uid', 6: 'resourceVersion' }

function metadataOf(message: Value): Json {
  const metadata: Json = {}
  const annotations: (readonly [string, string])[] = []
  eachField(message, (field, value) => {
    const name = METADATA[field]
    if (name !== undefined) metadata[name] = textOf(value)
    else if (field === 8) metadata['creationTimestamp'] = timeOf(value)
    else if (field === 12) annotations.push(entryOf(value))
  })
  return { ...metadata, annotations: Object.fromEntries(annotations) }
}

/** Returns a key and its value of a map of texts. */
function entryOf(message: Value): readonly [string, string] {
  let [key, text] = ['', '']
  eachField(message, (field, value) => {
    if (field === 1) key = textOf(value)
    if (field === 2) text = textOf(value)
  })
  return [key, text]
}

/** Returns a time as in JSON. The API server stores the time when a node was created without fractions of a second. */
function timeOf(message: Value): string | undefined {
  let ms = NaN
  eachField(message, (field, value) => {
    if (field === 1) ms = Number(value) * 1000
  })
  const time = new Date(ms)
  return Number.isNaN(time.getTime()) ? undefined : time.toISOString().replace('.000Z', 'Z')
}

/** Returns the explanation in an error of the API server (Status); empty if the bytes are not a valid Status. */
export function explanationOf(bytes: Buffer): string {
  let message = ''
  try {
    decode(bytes, (field, value) => {
      if (field === 3) message = textOf(value)
    })
  } catch {
    return ''
  }
  return message
}
