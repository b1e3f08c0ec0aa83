// Sentences one after the other, without those that are empty; a Chinese full stop has its space.
export const sentences = (parts) => parts.filter(Boolean).join(' ').replaceAll('\u3002 ', '\u3002');
