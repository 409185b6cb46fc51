// xml.test.ts - reading the XML answers of EC2, and refusing texts that are not XML.

import { describe, expect, it } from 'vitest'
import { elementsAt, readXml, textAt, tryXml } from '../../../../../src/path/backends/fabric/xml.ts'

const nested = (depth: number): string => `${'<a>'.repeat(depth)}${'</a>'.repeat(depth)}`

describe('the XML of an answer', () => {
  it('is read with its entities and empty elements', () => {
    const root = readXml(
      '<?xml version="1.0"?>\n<!-- a -->\n<r xmlns="x"><a><b>1 &lt; 2 &amp;amp; &#65;&#x42; &odd;</b><c/></a><a><b/></a></r>',
    )
    expect(root.name).toBe('r')
    expect(elementsAt(root, 'a/b').map(({ text }) => text)).toEqual(['1 < 2 &amp; AB &odd;', ''])
    expect([textAt(root, 'a/c'), textAt(root, 'none/b')]).toEqual(['', ''])
  })

  it.each([
    ['&lt;&gt;&amp;&quot;&apos;', `<>&"'`],
    ['&lt&gt; &;', '&lt> &;'],
    // The lowest and highest valid character numbers, and the invalid numbers next to them.
    ['&#0;&#1;&#1114111;&#1114112;', '&#0;\u0001\u{10ffff}&#1114112;'],
    ['&#x0;&#x1;&#x10ffff;&#x10FFFF;&#x110000;', '&#x0;\u0001\u{10ffff}\u{10ffff}&#x110000;'],
    ['&#xg;&#a;', '&#xg;&#a;'],
  ])('unescapes %s', (escaped, text) => {
    expect(readXml(`<a>${escaped}</a>`)).toEqual({ name: 'a', text, children: [] })
  })

  it('has neither comments nor attributes, and may be followed by space', () => {
    const text = '<r b="c"\n>1<!-- <a>, -> -->2<?x <b?>3<c\td="e"/>4<f g="h"></f >5</r>\n'
    const children = ['c', 'f'].map((name) => ({ name, text: '', children: [] }))
    expect(readXml(text)).toEqual({ name: 'r', text: '12345', children })
  })

  it('has the first top-level element as its root', () => {
    expect(readXml('<a/><b/>').name).toBe('a')
  })

  // With a regular expression each of these texts takes hours.
  it('is read in linear time', () => {
    for (const text of ['<', '<!--', '<a', '</', '&'])
      expect(() => readXml(text.repeat(1_000_000))).toThrow(/end|element|document/)
  })

  it.each([
    ['', 'it is not a complete XML document'],
    ['text', 'it is not a complete XML document'],
    ['{"a":1}', 'it is not a complete XML document'],
    ['<!-- a -->', 'it is not a complete XML document'],
    ['<a>', 'it is not a complete XML document'],
    ['<a></a><b>', 'it is not a complete XML document'],
    ['<a></b>', 'the tag </b> ends no element'],
    ['<a></ab>', 'the tag </ab> ends no element'],
    ['</a>', 'the tag </a> ends no element'],
    ['</>', 'the tag </> ends no element'],
    ['<a></a></>', 'the tag </> ends no element'],
    ['<a/></a>', 'the tag </a> ends no element'],
    ['<a></a', 'a tag or a comment has no end'],
    ['<a></a><!-- b >', 'a tag or a comment has no end'],
    [nested(51), 'it is nested more than 50 deep'],
  ])('is refused: %j', (text, message) => {
    expect(() => readXml(text)).toThrow(message)
    expect(tryXml(text)).toBeUndefined()
  })

  it('may be nested deeper than any answer of EC2', () => {
    expect(tryXml(nested(50))?.name).toBe('a')
  })

  it('elementsAt returns all elements at a path; textAt returns the trimmed text of the first one', () => {
    const items = ['<item>x<id> 1 </id></item>', '<index><id>2</id></index>', '<item><id>3</id><id>4</id></item>']
    const root = readXml(`<set>${items.join('')}<id>5</id></set>`)
    expect(elementsAt(root, 'item/id').map(({ text }) => text)).toEqual([' 1 ', '3', '4'])
    expect(textAt(root, 'item/id')).toBe('1')
    expect(textAt(root, 'id')).toBe('5')
    expect(elementsAt(root, 'id/item')).toEqual([])
  })
})
